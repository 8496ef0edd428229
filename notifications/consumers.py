"""WebSocket at /ws/: push notifications and live updates to signed-in members.

Address: `/ws/?organization=<slug>&language=<code>&last_event_id=<id>&since=<id>`; all parameters are optional.
`language` is that of the page, and of the notifications that this socket sends. Messages are JSON
objects:

- {"type": "welcome", "organization", "unread", "alerts": [notification…], "last_event_id", "now", "floor"}: sent
  once
- {"type": "notification", "id", …}: a new notification, or one missed since `last_event_id`, in the order of ids
- {"type": "changed", "id", …}: a notification that was read, acknowledged or resolved, here or elsewhere.
  That of an open alert comes with the next beat if it was lost
- {"type": "repeat", "id", …}: an unacknowledged alert, to be shown and sounded again
- {"type": "events", "items": [live update…]}: live updates of jobs, technicians and so on (see `live_updates`),
  including those missed since the event `since`, which is the last `floor` received or the page's data-since
- {"type": "refetch"}: too many live updates were missed to send them; the page fetches everything
- {"type": "beat", "now", "floor"}: every SOCKET_RECHECK_S; `now` is the server's clock in Unix milliseconds

`last_event_id` is the `id` of the last notification received. Clients use it to drop duplicates. If the one in
`welcome` is lower, the database was restored or has lost its last commits, and ids are used again.
Clients send {"type": "ping"} and get {"type": "pong"}.
Close codes: 4401 (no longer signed in, or the second factor is missing), 4403 (not a member of the organization),
4429 (the organization has too many open sockets).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections.abc import Collection
from dataclasses import dataclass
from importlib import import_module
from typing import Any
from urllib.parse import parse_qs

import structlog
from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncJsonWebsocketConsumer
from django.conf import settings

from accounts import limits, tenancy
from accounts.auth import second_factor, sessions
from accounts.auth.session_store import get_session_user
from accounts.models import User
from accounts.sso import sessions as sso
from dispatch.core import clock, languages
from dispatch.core.ids import read_id
from notifications import live_updates, services
from notifications.api.serializers import NotificationSerializer, with_asked_at
from notifications.models import Notification

log = structlog.get_logger(__name__)

# Clients only send pings. Longer frames, and more than MAX_FRAMES in FRAMES_S, close the socket.
MAX_FRAME_LENGTH = 1024
MAX_FRAMES = 30
FRAMES_S = 10.0
TOO_LONG, TOO_MANY = 1009, 1008

NOT_SIGNED_IN, NOT_A_MEMBER, TOO_MANY_SOCKETS = 4401, 4403, 4429
BATCH = 500
# Live updates within this interval are sent as one message (seconds).
TOGETHER_S = 0.03
# Missed updates are read once for all sockets that check again within this interval (seconds).
SHARED_S = 0.5


@dataclass(frozen=True)
class Missed:
    """The notifications and live updates that a socket may have missed.

    `rows`: at most `BATCH` notifications. `hints`: the live updates above the socket's floor. `complete`: whether
    those are all. `floor`: the floor for the next check. `ended`: alerts that the page shows as open and that were
    acknowledged or have ended.
    """

    rows: list[dict[str, Any]]
    hints: list[dict[str, Any]]
    complete: bool
    floor: int
    ended: list[dict[str, Any]]


def _is_open(row: dict[str, Any]) -> bool:
    return not (row["acknowledged_at"] or row["settled_at"])


class NotificationsConsumer(AsyncJsonWebsocketConsumer):
    """Join the organization's group, send what was missed, then forward live messages.

    Checks the person's access again when memberships change and every SOCKET_RECHECK_S.
    """

    organization_id = 0  # not joined yet
    language = languages.DEFAULT
    last_id = floor = 0  # of the notifications that were sent, and of the events for the next check
    _frames: list[float] = []  # times of the most recent frames
    watch: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        query = {name: values[-1] for name, values in parse_qs(self.scope["query_string"].decode()).items()}
        self.slug = query.get("organization", "")
        self.language = languages.accepted_language(query.get("language", "")) or languages.DEFAULT
        refused = await self._enter() or await self._admit()
        if refused:
            await self.close(code=refused)
            return
        self.group = live_updates.group_of(self.organization_id)
        await self.channel_layer.group_add(self.group, self.channel_name)
        await self.accept()
        joined = time.monotonic()
        self.sent_ids: set[int] = set()  # ids of events above the floor that were sent on this socket
        self.waiting: list[dict[str, Any]] = []
        welcome = await self._welcome(read_id(query.get("last_event_id")), read_id(query.get("since")))
        self.open_alerts = {row["id"] for row in welcome["alerts"]}  # those that the page shows as open
        await self.send_json(welcome)
        await self._send_new(await self._missed(joined))
        self.watch = asyncio.create_task(self._watch_updates())

    async def dispatch(self, message: dict[str, Any]) -> None:
        # The most frequent message needs no database. Handle it without Channels' close_old_connections, which
        # would use the one thread that all sockets share for database access.
        if message["type"] == live_updates.EVENTS_HAPPENED:
            await self.events_happened(message)
            return
        if message["type"] == "websocket.disconnect" and self.watch is not None:
            self.watch.cancel()  # immediately, because nobody is connected
        await super().dispatch(message)

    async def disconnect(self, code: int) -> None:
        if group := getattr(self, "group", None):
            with contextlib.suppress(Exception):  # the channel layer may be unavailable
                await self.channel_layer.group_discard(group, self.channel_name)
            await self._release()

    async def websocket_receive(self, message: dict[str, Any]) -> None:
        """Reject frames that the client never sends, before they are decoded."""
        length = len(message.get("text") or "") + len(message.get("bytes") or b"")
        now = time.monotonic()
        self._frames = [at for at in self._frames if now - at < FRAMES_S]
        self._frames.append(now)
        if length > MAX_FRAME_LENGTH or message.get("text") is None:
            await self.close(code=TOO_LONG)
        elif len(self._frames) > MAX_FRAMES:
            await self.close(code=TOO_MANY)
        else:
            await super().websocket_receive(message)

    async def receive_json(self, content: Any, **kwargs: Any) -> None:
        if isinstance(content, dict) and content.get("type") == "ping":
            await self.send_json({"type": "pong"})

    async def notifications_written(self, message: dict[str, Any]) -> None:
        await self._send_missed()

    async def notifications_changed(self, message: dict[str, Any]) -> None:
        await self._send_changed(await self._own(message["ids"]))

    async def notifications_repeated(self, message: dict[str, Any]) -> None:
        for row in await self._own(message["ids"]):
            if _is_open(row):
                self._note_alert(row)
                await self.send_json({"type": "repeat", **row})

    async def events_happened(self, message: dict[str, Any]) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_later(TOGETHER_S, lambda: asyncio.ensure_future(self._send_events()))
        self.waiting += [message["hint"], *message.get("more", ())]

    async def members_changed(self, message: dict[str, Any]) -> None:
        await self._close_if_refused()

    @classmethod
    async def decode_json(cls, text_data: str) -> Any:
        try:
            return json.loads(text_data)
        except (ValueError, RecursionError):
            return None

    async def _watch_updates(self) -> None:
        try:
            # Add jitter: sockets that opened together would otherwise keep checking together.
            await asyncio.sleep(settings.SOCKET_RECHECK_S * random.random())
            while True:
                refused, missed = await self._check_again(frozenset(self.open_alerts))
                if refused:
                    await self.close(code=refused)
                    return
                await self._send_new(missed)  # a live update may have been lost
                self.floor = missed.floor
                self.sent_ids = {event_id for event_id in self.sent_ids if event_id > self.floor}
                await self.send_json({"type": "beat", "now": clock.now_ms(), "floor": self.floor})
                await asyncio.sleep(settings.SOCKET_RECHECK_S)
        except OSError:  # the client disconnected
            with contextlib.suppress(Exception):
                await self.close(code=1011)
        except Exception:  # the database is unavailable; the client reconnects when it is back
            log.warning("socket_update_failed", exc_info=True)
            await self.close(code=1011)

    async def _close_if_refused(self) -> None:
        if refused := await self._enter():
            await self.close(code=refused)

    async def _send_missed(self) -> None:
        while rows := await self._after(self.last_id):
            await self._send_rows(rows)

    async def _send_rows(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if row["id"] > self.last_id:
                self.last_id = row["id"]
                self._note_alert(row)
                await self.send_json({"type": "notification", **row})

    async def _send_changed(self, rows: list[dict[str, Any]]) -> None:
        for row in rows:
            self._note_alert(row)
            await self.send_json({"type": "changed", **row})

    def _note_alert(self, row: dict[str, Any]) -> None:
        """Note whether the page shows the notification as an open alert, once the row was sent."""
        if row["level"] == Notification.Level.CRITICAL and _is_open(row):
            self.open_alerts.add(row["id"])
        else:
            self.open_alerts.discard(row["id"])

    async def _send_new(self, missed: Missed) -> None:
        """Send notifications, changes of alerts and live updates that this socket has not sent yet."""
        await self._send_rows(missed.rows)
        if len(missed.rows) == BATCH:
            await self._send_missed()
        await self._send_changed([row for row in missed.ended if row["id"] in self.open_alerts])
        fresh = [hint for hint in missed.hints if hint["id"] not in self.sent_ids]
        if missed.complete and len(fresh) <= live_updates.MAX_MISSED:
            self.waiting = [*fresh, *self.waiting]
            await self._send_events()
        else:
            self.sent_ids |= {hint["id"] for hint in fresh}
            await self.send_json({"type": "refetch"})

    async def _send_events(self) -> None:
        # by id: the same update may arrive both live and as a missed one
        fresh = list({hint["id"]: hint for hint in self.waiting if hint["id"] not in self.sent_ids}.values())
        self.waiting = []
        if not fresh:
            return
        self.sent_ids |= {hint["id"] for hint in fresh}
        with contextlib.suppress(Exception):  # closed meanwhile: the client catches up when it reconnects
            await self.send_json({"type": "events", "items": fresh})

    @database_sync_to_async
    def _check_again(self, open_alerts: Collection[int]) -> tuple[int, Missed]:
        """Check access (see `_enter`) and read what was missed, in one database thread."""
        if refused := self._may_listen():
            return refused, Missed([], [], True, self.floor, [])
        limits.admit_socket(self.organization_id, self.channel_name)  # renews it; an open socket stays open
        return 0, self._read_missed(time.monotonic() - SHARED_S, open_alerts)

    @database_sync_to_async
    def _missed(self, joined: float) -> Missed:
        return self._read_missed(joined, ())  # the welcome has the open alerts

    def _read_missed(self, not_before: float, open_alerts: Collection[int]) -> Missed:
        updates, complete = live_updates.missed_updates(self.organization_id, self.floor, not_before)
        rows, floor = self._rows_after(self.last_id), live_updates.update_floor(self.organization_id)
        return Missed(rows, updates, complete, floor, self._ended(open_alerts))

    def _ended(self, open_alerts: Collection[int]) -> list[dict[str, Any]]:
        if not open_alerts:
            return []
        known = self._rows().filter(pk__in=open_alerts)
        return self._serialize(known.exclude(acknowledged_at=None, settled_at=None))

    @database_sync_to_async
    def _enter(self) -> int:
        return self._may_listen()

    @database_sync_to_async
    def _admit(self) -> int:
        return 0 if limits.admit_socket(self.organization_id, self.channel_name) else TOO_MANY_SOCKETS

    @database_sync_to_async
    def _release(self) -> None:
        limits.release_socket(self.organization_id, self.channel_name)

    def _may_listen(self) -> int:
        """Return 0 if the person may listen, else the close code. Reads session, user and membership again."""
        session = import_module(settings.SESSION_ENGINE).SessionStore(self.scope["session"].session_key)
        user = sso.limit_user(get_session_user(session), session)
        if not isinstance(user, User) or second_factor.missing_step(user, session):
            return NOT_SIGNED_IN
        sessions.extend_session(session)  # an open page is in use
        try:
            context = tenancy.membership_context(user, self.slug, session.get(tenancy.SESSION_KEY))
        except tenancy.NoOrganization:
            return NOT_A_MEMBER
        if self.organization_id not in (0, context.organization.pk):
            return NOT_A_MEMBER  # the membership that opened this socket has ended; another needs another socket
        self.user, self.organization_id, self.slug = user, context.organization.pk, context.organization.slug
        return 0

    def _rows(self) -> Any:
        mine = Notification.objects.of(self.organization_id).filter(user=self.user)
        return with_asked_at(mine.select_related("acknowledged_by"))

    @database_sync_to_async
    def _welcome(self, last_id: int | None, since: int | None) -> dict[str, Any]:
        """Return the first message, and go on after the notification and the event that the page named.

        Ids above the newest belong to commits that the database has lost, and are used again.
        """
        newest = self._rows().order_by("-id").values_list("pk", flat=True).first() or 0
        floor = live_updates.update_floor(self.organization_id)
        self.last_id = newest if last_id is None else min(last_id, newest)
        self.floor = floor
        if since is not None and since <= live_updates.newest_event(self.organization_id):
            self.floor = since
        alerts = self._rows().filter(level="critical", acknowledged_at=None, settled_at=None)
        return {
            "type": "welcome",
            "organization": self.slug,
            "unread": services.unread_of(self.user, self.organization_id).count(),
            "alerts": self._serialize(alerts[:BATCH]),
            "last_event_id": newest,
            "now": clock.now_ms(),
            "floor": floor,
        }

    @database_sync_to_async
    def _after(self, last_id: int) -> list[dict[str, Any]]:
        return self._rows_after(last_id)

    def _rows_after(self, last_id: int) -> list[dict[str, Any]]:
        rows = self._rows().filter(pk__gt=last_id).order_by("pk")[:BATCH]
        return self._serialize(rows)

    @database_sync_to_async
    def _own(self, ids: list[int]) -> list[dict[str, Any]]:
        return self._serialize(self._rows().filter(pk__in=ids).order_by("pk"))

    def _serialize(self, rows: Any) -> list[dict[str, Any]]:
        """Return the notifications as the page shows them, in its language."""
        with languages.override(self.language):
            return list(NotificationSerializer(rows, many=True).data)
