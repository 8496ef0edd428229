"""The pages of schedules: what comes next, a calendar, what ran, and a form with a preview of the next times."""
