"""What happened, drawn: one self-contained HTML page, and pictures of the same."""
