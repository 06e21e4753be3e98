"""What runs inside `transparent()`: actions, SQL statements, writes that delete what they read."""
