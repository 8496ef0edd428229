"""The ASGI application."""

import os
from typing import Any

import django
from channels.routing import ProtocolTypeRouter
from django.apps import apps

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatch.settings")
# Requests and sockets run in many threads, more than there should be connections: this process takes them from a
# pool.
THREADS = int(os.environ.setdefault("DB_POOL_SIZE", "16")) or 16
if not apps.ready:  # else the log would be set up twice, and loggers that were used before keep the first
    django.setup(set_prefix=False)

from dispatch.core.request_threads import RequestThreads  # noqa: E402  (needs the apps that the line above loads)
from dispatch.outbox import processing  # noqa: E402
from notifications.routing import websocket  # noqa: E402

http = RequestThreads(THREADS)


async def lifespan(_scope: Any, receive: Any, send: Any) -> None:
    """Closes what belongs to the web process's event loop when it ends: connections to targets, their threads."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await processing.close()
    await send({"type": "lifespan.shutdown.complete"})


application = ProtocolTypeRouter({"http": http, "websocket": websocket, "lifespan": lifespan})
