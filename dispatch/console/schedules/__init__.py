"""The pages of schedules: upcoming runs, calendar, past runs, and a form with a preview of the next times."""
