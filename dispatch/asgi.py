"""Define the ASGI application."""

import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter
from django.apps import apps

from dispatch.core.db import session_limits

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatch.settings")
# Requests and sockets use more threads than there should be connections, so this process uses a connection pool.
THREADS = int(os.environ.setdefault("DB_POOL_SIZE", "16")) or 16
if not apps.ready:  # else logging would be configured twice, and loggers in use would keep the first setup
    session_limits.apply(session_limits.WEB)
    django.setup(set_prefix=False)

from django.conf import settings  # noqa: E402
from django.urls import reverse  # noqa: E402

from dispatch.core.web import health  # noqa: E402  (needs the apps that the lines above load)
from dispatch.core.web.asgi_handler import ThreadedASGIHandler  # noqa: E402
from dispatch.core.web.bare_handler import BareHandler  # noqa: E402
from dispatch.core.web.body_limits import BodyLimitMiddleware  # noqa: E402
from dispatch.core.web.charsets import CharsetMiddleware  # noqa: E402
from dispatch.core.web.http_metrics import HttpMetrics, SocketMetrics  # noqa: E402
from dispatch.core.web.probes import Probes  # noqa: E402
from dispatch.core.zips import load_zip_codes  # noqa: E402
from dispatch.outbox import processor  # noqa: E402
from dispatch.telephony.webhook_route import WebhookRoute  # noqa: E402
from notifications.routing import websocket  # noqa: E402

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
