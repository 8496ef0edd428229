"""Accept messages that clients send or that are created from Events."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import IntegrityError, transaction

from accounts import limits
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock, fault_injection
from dispatch.core.db.errors import is_missing_reference
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.runtime import queues
from dispatch.outbox import sql
from dispatch.outbox.models import DEFAULT_GROUP, DEFAULT_SEQUENCE, Endpoint, Message, Mode, Target
from dispatch.outbox.pointer import group_hash
from dispatch.outbox.services.scheduling import lock_groups, reschedule_groups
from dispatch.outbox.services.target_health import POLLER


@dataclass(frozen=True)
class NewMessage:
    """A message to create, for `endpoint` or for `url` in `pool` (None: the organization's default).

    `payload` is JSON text, sent unchanged. `mode` None: the endpoint's, else BLOCK_ON_ERROR. `expires_at` None:
    the endpoint's setting. `actor` None: the one who sends all of them.
    """

    type: str
    payload: str
    endpoint: Endpoint | None = None
    url: str = ""
    pool: DispatchPool | None = None
    group: str | None = None
    sequence: int = DEFAULT_SEQUENCE
    mode: str | None = None
    scheduled_for: datetime | None = None
    expires_at: datetime | None = None
    idempotency_key: str | None = None
    event_id: int | None = None
    actor: Actor | None = None


@dataclass(frozen=True)
class Accepted:
    """The message's `id`. `is_new` is False if its idempotency key or its event already had a message."""

    id: int
    is_new: bool


def new_webhook_id(at: datetime) -> str:
    """Return a new webhook-id: unique, in the order of time for the index, and silent about other messages."""
    milliseconds = int(at.timestamp() * 1000)
    return f"msg_{milliseconds:012x}{secrets.token_hex(10)}"


def group_name(group: str | None) -> str:
    """Return a group's name: null, empty and "default" are the same group."""
    return group or DEFAULT_GROUP


def accept_messages(
    organization_id: int, items: Sequence[NewMessage], *, actor: Actor = SYSTEM, is_limited: bool = True
) -> list[Accepted]:
    """Create messages in this order, in one transaction; return the result of each, in order.

    The transaction is the caller's, if there is one. The poller is notified after the commit. Raises LimitReached,
    unless `is_limited` is False.
    """
    if not items:
        return []
    if is_limited:
        limits.check_headroom(organization_id, "messages", len(items), partial(_count_waiting, organization_id))
    now = clock.now()
    with transaction.atomic():
        targets = _targets(organization_id, items)
        modes = [_mode(item) for item in items]
        groups, ordered = _locked_groups(organization_id, items, modes, now)
        ids = [row[0] for row in sql.fetch_all(sql.NEW_IDS, {"count": len(items)})]
        actors = [item.actor or actor for item in items]
        names = ("ids", "organizations", "endpoints", "targets", "urls", "types", "payloads", "groups",
                 "sequences", "modes", "schedules", "expiries", "keys", "events", "webhook_ids", "actor_types",
                 "actor_ids", "actor_labels")  # fmt: skip
        values = [
            (
                new_id, organization_id, item.endpoint.pk if item.endpoint else None, target, item.url, item.type,
                item.payload, group, item.sequence, mode, item.scheduled_for, _expiry(item, now),
                item.idempotency_key or None, item.event_id, new_webhook_id(now),
                who.type, who.id, who.label[:120],
            )
            for new_id, item, target, group, mode, who in zip(
                ids, items, targets, groups, modes, actors, strict=True
            )
        ]  # fmt: skip
        given: dict[str, Any] = dict(zip(names, sql.columns(values, len(names)), strict=True))
        added = {row[0] for row in sql.fetch_all(sql.ADD_MESSAGES, {**given, "now": now})}
        reschedule_groups(ordered, now)
        fault_injection.crash_point("outbox.accept.before_commit")
        queues.notify_loop(POLLER)
        return [
            Accepted(new_id, True) if new_id in added else Accepted(_existing(organization_id, item), False)
            for new_id, item in zip(ids, items, strict=True)
        ]


def _count_waiting(organization_id: int, most: int) -> int:
    return Message.objects.of(organization_id).filter(ended_at=None).order_by()[:most].count()


def accept_of_several(items: Mapping[int, Sequence[NewMessage]], *, actor: Actor = SYSTEM) -> None:
    """Accept messages of several organizations (id → their messages) in one transaction.

    As `accept_messages`, but all groups are locked first, ordered by id as everywhere: if each organization's
    groups were locked in turn, they could deadlock with the end of an attempt. The limit of messages does not
    apply: these report what has happened.
    """
    now = clock.now()
    with transaction.atomic():
        groups = [
            (group, _mode(item))
            for organization_id in sorted(items)
            for item, group in zip(
                items[organization_id], _groups(organization_id, items[organization_id], now), strict=True
            )
        ]
        lock_groups(group for group, mode in groups if mode != Mode.IMMEDIATE)
        for organization_id in sorted(items):
            accept_messages(organization_id, items[organization_id], actor=actor, is_limited=False)


def default_pool(organization_id: int) -> DispatchPool:
    """Return the organization's default pool for messages.

    It is created on first use, with the code OUTBOX_DEFAULT_POOL.
    """
    pools = DispatchPool.objects.of(organization_id).filter(kind=DispatchPool.Kind.MESSAGES)
    if default := pools.filter(is_default=True).first():
        return default
    code = settings.OUTBOX_DEFAULT_POOL
    return DispatchPool.objects.get_or_create(
        organization_id=organization_id,
        code=code,
        defaults={"name": "Messages", "kind": DispatchPool.Kind.MESSAGES, "is_default": True},
    )[0]


def _mode(item: NewMessage) -> str:
    return item.mode or (item.endpoint.mode if item.endpoint else Mode.BLOCK)


def _expiry(item: NewMessage, now: datetime) -> datetime | None:
    if item.expires_at or not item.endpoint or not item.endpoint.expire_after_s:
        return item.expires_at
    return (item.scheduled_for or now) + timedelta(seconds=item.endpoint.expire_after_s)


def _targets(organization_id: int, items: Sequence[NewMessage]) -> list[int]:
    """Return the target of each item, creating new ones."""
    known: dict[tuple[int | None, str, int | None], int] = {}
    groups = []
    for item in items:
        key: tuple[int | None, str, int | None]
        if item.endpoint:
            key = (item.endpoint.pk, "", None)
        else:
            key = (None, _origin(item.url), item.pool.pk if item.pool else None)
        if key not in known:
            known[key] = _target(organization_id, *key)
        groups.append(known[key])
    return groups


def _origin(url: str) -> str:
    """Return scheme, host and port of a URL."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}".lower()[:300]


def find_target(organization_id: int, endpoint_id: int | None, url: str) -> int | None:
    """Return the target of a URL, or of an endpoint, creating a new one. A URL's target has the default pool.

    Return None if the endpoint was deleted.
    """
    try:
        return _target(organization_id, endpoint_id, "" if endpoint_id else _origin(url), None)
    except IntegrityError as error:
        if endpoint_id is None or not is_missing_reference(error):
            raise
        return None


def _target(organization_id: int, endpoint_id: int | None, origin: str, pool_id: int | None) -> int:
    if endpoint_id:
        target, _ = Target.objects.get_or_create(
            endpoint_id=endpoint_id, defaults={"organization_id": organization_id}
        )
    else:
        target, _ = Target.objects.get_or_create(
            organization_id=organization_id,
            endpoint=None,
            origin=origin,
            pool_id=pool_id or default_pool(organization_id).pk,
        )
    return target.pk


def _locked_groups(
    organization_id: int, items: Sequence[NewMessage], modes: Sequence[str], now: datetime
) -> tuple[list[int], set[int]]:
    """Lock and return the group of each item, and the ids of the groups with ordered messages.

    The locks keep retention from deleting a group while messages join it.
    """
    while True:
        groups = _groups(organization_id, items, now)
        ordered = {group for group, mode in zip(groups, modes, strict=True) if mode != Mode.IMMEDIATE}
        # If both kinds are present, unordered groups are locked like ordered ones: two statements would violate
        # the lock order.
        lock = sql.LOCK_GROUPS if ordered else sql.KEEP_GROUPS
        if len(sql.fetch_all(lock, {"ids": sorted(set(groups))})) == len(set(groups)):
            return groups, ordered
        # A group was deleted since it was read: create it again.


def _groups(organization_id: int, items: Sequence[NewMessage], now: datetime) -> list[int]:
    """Return the group of each item, creating new ones.

    The key is organization, endpoint and name. Messages to URLs that name no group have one for each origin: a
    receiver must not hold up another.
    """
    keyed = []
    for item in items:
        name, endpoint_id = group_name(item.group), item.endpoint.pk if item.endpoint else None
        origin = [_origin(item.url)] if endpoint_id is None and name == DEFAULT_GROUP else []
        keyed.append((group_hash(organization_id, endpoint_id or "", name, *origin), endpoint_id, name))
    keys = sorted({key for key, _, _ in keyed})
    ids = dict(sql.fetch_all(sql.GROUP_IDS, {"keys": keys}))
    if missing := sorted({entry for entry in keyed if entry[0] not in ids}):
        new_keys, endpoints, names = sql.columns(missing, 3)
        given = {"keys": new_keys, "endpoints": endpoints, "names": names, "now": now}
        sql.execute(sql.ADD_GROUPS, {**given, "organizations": [organization_id] * len(missing)})
        ids = dict(sql.fetch_all(sql.GROUP_IDS, {"keys": keys}))
    return [ids[key] for key, _, _ in keyed]


def _existing(organization_id: int, item: NewMessage) -> int:
    if item.event_id is not None:
        messages = Message.objects.filter(endpoint=item.endpoint, event_id=item.event_id)
    else:
        messages = Message.objects.of(organization_id).filter(idempotency_key=item.idempotency_key)
    return messages.values_list("pk", flat=True).get()
