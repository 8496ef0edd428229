"""Define the ASGI application."""

import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter
from django.apps import apps

from dispatch.core.db import session_limits

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatch.settings")
if not apps.ready:  # else logging would be configured twice, and loggers in use would keep the first setup
    session_limits.prepare_web()
    django.setup(set_prefix=False)

from django.conf import settings
from django.urls import reverse

from dispatch.core.web import health
from dispatch.core.web.asgi_handler import ThreadedASGIHandler
from dispatch.core.web.bare_handler import BareHandler
from dispatch.core.web.body_limits import BodyLimitMiddleware
from dispatch.core.web.charsets import CharsetMiddleware
from dispatch.core.web.http_metrics import HttpMetrics, SocketMetrics
from dispatch.core.web.probes import Probes
from dispatch.core.zips import load_zip_codes
from dispatch.outbox import processor
from dispatch.telephony.webhook_route import WebhookRoute
from notifications.routing import websocket

# Requests and sockets use more threads than there should be connections, so this process uses a connection pool.
THREADS = settings.DB_POOL_SIZE or session_limits.WEB_THREADS
webhooks = BareHandler("/telephony/", "dispatch.telephony.urls", settings.WEBHOOK_MIDDLEWARE)
reports = WebhookRoute(ThreadedASGIHandler(THREADS, webhooks), webhooks)
http = HttpMetrics(
    CharsetMiddleware(
        BodyLimitMiddleware(
            Probes(reports),
            default_bytes=settings.DATA_UPLOAD_MAX_MEMORY_SIZE,
            routes=settings.LARGE_BODY_ROUTES,
        )
    )
)


async def lifespan(_scope: Any, receive: Any, send: Any) -> None:
    """At startup, load what the first requests need. At shutdown, close the resources of the event loop.

    They are the connections to targets, the processor's threads and the probes' database connection.
    """
    await receive()
    load_zip_codes()  # for forms and the board's map
    reverse("home")  # loads all pages, which the first request would wait for
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await processor.close_processor()
    reports.close()
    health.database_link.close()
    await send({"type": "lifespan.shutdown.complete"})


application = ProtocolTypeRouter({"http": http, "websocket": SocketMetrics(websocket), "lifespan": lifespan})
