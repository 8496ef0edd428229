"""Provide the admin pages of leads."""

from dispatch.leads.admin import calling_rules, campaigns, leads

__all__ = ["calling_rules", "campaigns", "leads"]
