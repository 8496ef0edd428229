"""Formats of English: American dates with the 24-hour clock, as in the console."""

DATE_FORMAT = "M j, Y"
TIME_FORMAT = "H:i"
DATETIME_FORMAT = "M j, Y, H:i"
