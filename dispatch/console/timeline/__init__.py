"""The timeline of technicians."""
