"""Route the API of leads under /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver

from dispatch.leads.api.calling_rules import urlpatterns as rulebook
from dispatch.leads.api.campaigns import urlpatterns as campaigns
from dispatch.leads.api.engine import urlpatterns as engine
from dispatch.leads.api.leads import urlpatterns as leads
from dispatch.leads.api.recordings import urlpatterns as recordings

urlpatterns: list[URLPattern | URLResolver] = [*leads, *campaigns, *recordings, *engine, *rulebook]
