"""Socket routes and access: same origin, signed-in user."""

from typing import Any

from channels.routing import URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from channels.sessions import SessionMiddlewareStack
from django.urls import path, re_path

from notifications.consumers import NotificationsConsumer


async def refuse_unknown_path(scope: Any, receive: Any, send: Any) -> None:
    """Answer 403 to a socket at any other address; without this route, it would be a server error."""
    await receive()
    await send({"type": "websocket.close", "code": 4404})


websocket = AllowedHostsOriginValidator(
    SessionMiddlewareStack(
        URLRouter(
            [
                path("ws/", NotificationsConsumer.as_asgi()),
                re_path(r"", refuse_unknown_path),  # type: ignore[arg-type]  # an ASGI application, not a view
            ]
        )
    )
)
