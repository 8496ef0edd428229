"""Formats of numbers and dates that differ from Django's, by language."""
