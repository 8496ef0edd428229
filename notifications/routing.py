"""Socket routes and access: same origin, signed-in user."""

from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from channels.sessions import SessionMiddlewareStack
from django.urls import path

from notifications.consumers import NotificationsConsumer

websocket = AllowedHostsOriginValidator(
    SessionMiddlewareStack(URLRouter([path("ws/", NotificationsConsumer.as_asgi())]))
)
