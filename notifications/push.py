"""Hints to open sockets, sent after commit to the organization's group. They carry ids only: a socket reads the
rows for itself, so a lost, doubled or reordered hint changes nothing but the moment."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from channels.layers import get_channel_layer
from django.conf import settings
from django.db import transaction

from dispatch.core.redis import client

log = structlog.get_logger(__name__)


def group_of(organization_id: int) -> str:
    """The group that the sockets of an organization's members join."""
    return f"organization.{organization_id}"


def written(organization_id: int, ids: Sequence[int]) -> None:
    """New notifications are there."""
    if ids:
        _after_commit(organization_id, {"type": "notifications.written"})


def changed(organization_id: int, ids: Sequence[int]) -> None:
    """These were read, acknowledged or settled."""
    if ids:
        _after_commit(organization_id, {"type": "notifications.changed", "ids": list(ids)})


def happened(organization_id: int, hint: dict[str, Any]) -> None:
    """An event (`hints`), committed."""
    _send(organization_id, {"type": "events.happened", "hint": hint})


def repeated(organization_id: int, ids: Sequence[int]) -> None:
    """These alerts still wait for somebody: they are to be heard again."""
    if ids:
        _after_commit(organization_id, {"type": "notifications.repeated", "ids": list(ids)})


def members_changed(organization_id: int) -> None:
    """Somebody's membership changed: every socket asks again whether it may stay."""
    _after_commit(organization_id, {"type": "members.changed"})


def _after_commit(organization_id: int, message: dict[str, Any]) -> None:
    transaction.on_commit(partial(_send, organization_id, message), robust=True)


def _send(organization_id: int, message: dict[str, Any]) -> None:
    """As the layer's `group_send`, in its own format and under its own name, but on this thread's connection: from
    synchronous code the layer would open a loop and a connection for every message."""
    try:
        layer: Any = get_channel_layer()
        config: Any = settings.CHANNEL_LAYERS["default"]["CONFIG"]
        name = f"{config['prefix']}__group__{group_of(organization_id)}"
        client().publish(name, layer.serialize(message))
    except Exception as error:  # a push that fails must never fail the work
        log.warning("a push failed", message=message["type"], error=str(error))
