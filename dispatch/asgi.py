"""The ASGI application."""

import os
from typing import Any

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatch.settings")
# Each request runs in a thread of its own, so connections that belong to threads would be opened for each request;
# this process takes them from a pool instead.
os.environ.setdefault("DB_POOL_SIZE", "16")
http = get_asgi_application()

from dispatch.outbox import processing  # noqa: E402  (needs the apps that the line above loads)
from notifications.routing import websocket  # noqa: E402


async def lifespan(_scope: Any, receive: Any, send: Any) -> None:
    """Closes what belongs to the web process's event loop when it ends: connections to targets, their threads."""
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await processing.close()
    await send({"type": "lifespan.shutdown.complete"})


application = ProtocolTypeRouter({"http": http, "websocket": websocket, "lifespan": lifespan})
