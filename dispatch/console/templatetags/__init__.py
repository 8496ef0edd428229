"""Template tags and filters of the console."""
