"""The addresses of leads under /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver

from dispatch.leads.api.campaigns import urlpatterns as campaigns
from dispatch.leads.api.engine import urlpatterns as engine
from dispatch.leads.api.leads import urlpatterns as leads
from dispatch.leads.api.rulebook import urlpatterns as rulebook

urlpatterns: list[URLPattern | URLResolver] = [*leads, *campaigns, *engine, *rulebook]
