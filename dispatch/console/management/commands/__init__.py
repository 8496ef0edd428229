"""Hold the management commands of the console."""
