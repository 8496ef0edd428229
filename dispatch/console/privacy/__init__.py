"""The personal data page: look up a person, and export or erase their data."""
