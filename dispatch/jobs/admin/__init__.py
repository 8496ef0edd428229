"""The admin pages of jobs."""

from dispatch.jobs.admin import calls, config, jobs, notes, public_form

__all__ = ["calls", "config", "jobs", "notes", "public_form"]
