"""The socket at /ws/: what a signed-in member must know, as it happens.

`/ws/?organization=<slug>&last_event_id=<id>&since=<id>`; all may be left out. Messages are JSON objects:
  {"type": "welcome", "organization", "unread", "alerts": [notification…], "last_event_id", "now", "floor"}   once
  {"type": "notification", "id", …}   a new one, in order of id; also what was missed since `last_event_id`
  {"type": "changed", "id", …}        one that was read, acknowledged or settled, here or elsewhere
  {"type": "repeat", "id", …}         an alert that nobody has acknowledged yet: it is to be heard again
  {"type": "events", "items": [hint…]} what happened to jobs, technicians … (`hints`); also what was missed since
                                      the event `since`: the `floor` last heard, or that of the page (data-since)
  {"type": "refetch"}                 more was missed than is worth telling
  {"type": "beat", "now", "floor"}    every SOCKET_RECHECK_S; `now` is the server's clock in Unix milliseconds
`last_event_id` is the `id` of the last notification received; doubled ones are to be dropped by it. Sent by the
client: {"type": "ping"}, answered {"type": "pong"}. Closed with 4401 (not signed in any more), 4403 (no place in
the organization)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from accounts import current
from accounts.models import User
from dispatch.core import clock
from dispatch.core.ids import read_id
from notifications import hints, push, services
from notifications.models import Notification
from notifications.serializers import NotificationSerializer

log = structlog.get_logger(__name__)

NOT_SIGNED_IN, NOT_A_MEMBER = 4401, 4403
BATCH = 500
# Hints that come within so short a time travel together (seconds).
TOGETHER_S = 0.03
# What was missed is read once for all sockets that look again within so short a time (seconds).
SHARED_S = 0.5


@dataclass(frozen=True)
class Missed:
    """What a socket may have missed: notifications (`BATCH` at most), hints of events above its floor, whether
    these are all of them, and the floor from which to look next time."""

    rows: list[dict[str, Any]]
    hints: list[dict[str, Any]]
    complete: bool
    floor: int


class NotificationsConsumer(AsyncJsonWebsocketConsumer):
    """Joins the group, then sends what was missed, then goes live; asks again whether it may at every change of
    members and every SOCKET_RECHECK_S."""

    organization_id = 0  # of none yet
    watch: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        query = {name: values[-1] for name, values in parse_qs(self.scope["query_string"].decode()).items()}
        self.slug = query.get("organization", "")
        refused = await self._enter()
        if refused:
            await self.close(code=refused)
            return
        self.group = push.group_of(self.organization_id)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()
        joined = time.monotonic()
        last, since = read_id(query.get("last_event_id")), read_id(query.get("since"))
        welcome = await self._welcome()
        self.last_id = welcome["last_event_id"] if last is None else last
        self.floor = welcome["floor"] if since is None else since
        self.told: set[int] = set()  # ids of events that this socket was told of, above its floor
        self.waiting: list[dict[str, Any]] = []
        await self.send_json(welcome)
        await self._tell(await self._missed(joined))
        self.watch = asyncio.create_task(self._keep_asking())

    async def dispatch(self, message: dict[str, Any]) -> None:
        # The most frequent message needs no database: it is spared the visit to the one thread that all sockets
        # share for theirs, with which Channels begins every message.
        if message["type"] == "events.happened":
            await self.events_happened(message)
            return
        if message["type"] == "websocket.disconnect" and self.watch is not None:
            self.watch.cancel()  # at once: there is nobody to tell any more
        await super().dispatch(message)

    async def disconnect(self, code: int) -> None:
        if group := getattr(self, "group", None):
            with contextlib.suppress(Exception):  # the layer may be gone
                await self.channel_layer.group_discard(group, self.channel_name)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        if isinstance(content, dict) and content.get("type") == "ping":
            await self.send_json({"type": "pong"})

    async def notifications_written(self, message: dict[str, Any]) -> None:
        await self._send_missed()

    async def notifications_changed(self, message: dict[str, Any]) -> None:
        for row in await self._own(message["ids"]):
            await self.send_json({"type": "changed", **row})

    async def notifications_repeated(self, message: dict[str, Any]) -> None:
        for row in await self._own(message["ids"]):
            if not (row["acknowledged_at"] or row["settled_at"]):
                await self.send_json({"type": "repeat", **row})

    async def events_happened(self, message: dict[str, Any]) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_later(TOGETHER_S, lambda: asyncio.ensure_future(self._send_events()))
        self.waiting.append(message["hint"])

    async def members_changed(self, message: dict[str, Any]) -> None:
        await self._stay_or_close()

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return json.loads(text_data)
        except ValueError:
            return None

    async def _keep_asking(self) -> None:
        try:
            # Not all at once: a thousand sockets that were opened together would ask together for ever.
            await asyncio.sleep(settings.SOCKET_RECHECK_S * random.random())
            while True:
                refused, missed = await self._look_again()
                if refused:
                    await self.close(code=refused)
                    return
                await self._tell(missed)  # a hint may have been lost
                self.floor = missed.floor
                self.told = {one for one in self.told if one > self.floor}
                await self.send_json({"type": "beat", "now": clock.now_ms(), "floor": self.floor})
                await asyncio.sleep(settings.SOCKET_RECHECK_S)
        except OSError:  # the client has gone
            with contextlib.suppress(Exception):
                await self.close(code=1011)
        except Exception:  # the database is gone: the client comes back when it is there again
            log.warning("a socket could not be kept up to date", exc_info=True)
            await self.close(code=1011)

    async def _stay_or_close(self) -> None:
        if refused := await self._enter():
            await self.close(code=refused)

    async def _send_missed(self) -> None:
        while rows := await self._after(self.last_id):
            await self._send_rows(rows)

    async def _send_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["id"] > self.last_id:
                self.last_id = row["id"]
                await self.send_json({"type": "notification", **row})

    async def _tell(self, missed: Missed) -> None:
        """Notifications and hints of events that this socket has not sent yet."""
        await self._send_rows(missed.rows)
        if len(missed.rows) == BATCH:
            await self._send_missed()
        fresh = [hint for hint in missed.hints if hint["id"] not in self.told]
        if missed.complete and len(fresh) <= hints.MOST_MISSED:
            self.waiting = [*fresh, *self.waiting]
            await self._send_events()
        else:
            self.told |= {hint["id"] for hint in fresh}
            await self.send_json({"type": "refetch"})

    async def _send_events(self) -> None:
        # by id: one may have been heard twice, or heard and found among the missed
        fresh = list({hint["id"]: hint for hint in self.waiting if hint["id"] not in self.told}.values())
        self.waiting = []
        if not fresh:
            return
        self.told |= {hint["id"] for hint in fresh}
        with contextlib.suppress(Exception):  # closed meanwhile: it is told again when it comes back
            await self.send_json({"type": "events", "items": fresh})

    @database_sync_to_async
    def _look_again(self) -> tuple[int, Missed]:
        """Whether the person may still listen (as `_enter`), and what was missed: one visit to the database."""
        if refused := self._may_listen():
            return refused, Missed([], [], True, self.floor)
        return 0, self._read_missed(time.monotonic() - SHARED_S)

    @database_sync_to_async
    def _missed(self, joined: float) -> Missed:
        return self._read_missed(joined)

    def _read_missed(self, not_before: float) -> Missed:
        found, complete = hints.missed(self.organization_id, self.floor, not_before)
        return Missed(self._rows_after(self.last_id), found, complete, hints.floor(self.organization_id))

    @database_sync_to_async
    def _enter(self) -> int:
        return self._may_listen()

    def _may_listen(self) -> int:
        """0 when the person may listen, else the code to close with. Reads session, user and membership anew."""
        request = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(self.scope["session"].session_key)
        user = get_user(request)
        if not isinstance(user, User):
            return NOT_SIGNED_IN
        try:
            found = current.of_person(user, self.slug, request.session.get(current.SESSION_KEY))
        except current.NoOrganization:
            return NOT_A_MEMBER
        if self.organization_id not in (0, found.organization.pk):
            return NOT_A_MEMBER  # the membership that this socket stood on is gone; another one is another socket
        self.user, self.organization_id, self.slug = user, found.organization.pk, found.organization.slug
        return 0

    def _rows(self) -> Any:
        return (
            Notification.objects.of(self.organization_id).filter(user=self.user).select_related("acknowledged_by")
        )

    @database_sync_to_async
    def _welcome(self) -> dict[str, Any]:
        newest = self._rows().order_by("-id").values_list("pk", flat=True).first()
        alerts = self._rows().filter(level="critical", acknowledged_at=None, settled_at=None)
        return {
            "type": "welcome",
            "organization": self.slug,
            "unread": services.unread_of(self.user, self.organization_id).count(),
            "alerts": NotificationSerializer(alerts[:BATCH], many=True).data,
            "last_event_id": newest or 0,
            "now": clock.now_ms(),
            "floor": hints.floor(self.organization_id),
        }

    @database_sync_to_async
    def _after(self, last_id: int) -> list[dict[str, Any]]:
        return self._rows_after(last_id)

    def _rows_after(self, last_id: int) -> list[dict[str, Any]]:
        rows = self._rows().filter(pk__gt=last_id).order_by("pk")[:BATCH]
        return list(NotificationSerializer(rows, many=True).data)

    @database_sync_to_async
    def _own(self, ids: list[int]) -> list[dict[str, Any]]:
        return list(NotificationSerializer(self._rows().filter(pk__in=ids).order_by("pk"), many=True).data)
