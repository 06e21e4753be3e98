"""A real Spark cluster on this machine, drivers in it, their kills, and what they tell."""
