"""The admin pages of technicians."""

from dispatch.technicians.admin import technicians

__all__ = ["technicians"]
