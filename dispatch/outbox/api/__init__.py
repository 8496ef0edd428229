"""Route the outbox's API under /api/v1/."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from dispatch.outbox.api.catalog import urlpatterns as catalog
from dispatch.outbox.api.endpoints import urlpatterns as endpoints
from dispatch.outbox.api.messages import urlpatterns as messages
from dispatch.outbox.api.portal import urlpatterns as portal
from dispatch.outbox.api.process import process

urlpatterns: list[URLPattern | URLResolver] = [
    path("dispatch/process/", process, name="outbox_process"),
    *catalog,
    *endpoints,
    *messages,
    *portal,
]
