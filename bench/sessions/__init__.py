"""A job to copy from: clicks to sessions, with a reducer that survives kills."""
