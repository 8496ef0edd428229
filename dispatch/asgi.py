"""The ASGI application."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "dispatch.settings")
# Each request runs in a thread of its own, so connections that belong to threads would be opened for each request;
# this process takes them from a pool instead.
os.environ.setdefault("DB_POOL_SIZE", "16")
http = get_asgi_application()

from notifications.routing import websocket  # noqa: E402  (needs the apps that the line above loads)

application = ProtocolTypeRouter({"http": http, "websocket": websocket})
