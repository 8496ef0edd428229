"""Route the outbox's API under /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver

from dispatch.outbox.api.catalog import urlpatterns as catalog
from dispatch.outbox.api.endpoints import urlpatterns as endpoints
from dispatch.outbox.api.messages import urlpatterns as messages
from dispatch.outbox.api.portal import urlpatterns as portal

urlpatterns: list[URLPattern | URLResolver] = [
    *catalog,
    *endpoints,
    *messages,
    *portal,
]
