"""Replace the subscriptions of a browser whose push service has given it a new one.

The service worker asks for it, without a session: technicians have none, and a user's may have ended. It proves
that it is the browser by the endpoint and the secret of its earlier subscription, which only the browser and this
server know.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction

from accounts.auth import throttling
from dispatch.core.events import SYSTEM, Actor
from notifications.models import PushSubscription
from notifications.services import push_keys, push_subscriptions

# Each renewal appends an event.
RATE = throttling.Rate(20, 3600)


class TooManyRenewals(Exception):
    """The browser has renewed its subscription too often within an hour."""


def renew(before: Mapping[str, Any], entered: Mapping[str, Any]) -> int:
    """Replace the earlier subscription by the new one, in each organization of the browser's people.

    Both are what `PushSubscription.toJSON()` returns, which anybody can forge. Return how many are current now:
    0 if the earlier one is unknown. A request whose answer was lost may come again. Raises TooManyRenewals, and
    ValidationError if the new one is not valid.
    """
    endpoint, keys = push_subscriptions.read_entered(entered)
    old, given = before.get("endpoint"), before.get("keys")
    secret = given.get("auth") if isinstance(given, Mapping) else None
    if not isinstance(old, str) or not old.isascii() or not isinstance(secret, str):
        return 0
    digest, server_key = push_subscriptions.hash_endpoint(endpoint), push_keys.load_keys().public
    new = {
        "endpoint": endpoint, "endpoint_hash": digest, "host": str(urlsplit(endpoint).hostname)[:120],
        "keys": keys, "server_key": server_key, "failures": 0, "error": "", "paused_until": None,
    }  # fmt: skip
    rows = push_subscriptions.valid_subscriptions().filter(
        endpoint_hash=push_subscriptions.hash_endpoint(old), organization__is_active=True
    )
    known = [row.public_id for row in rows if _is_secret_of(row, secret)]
    if any(throttling.take_token(f"push-renewal:{name}", RATE).wait_ms for name in known):
        raise TooManyRenewals
    with transaction.atomic():
        locked = rows.select_for_update(no_key=True, of=("self",)).order_by("pk")
        mine = [row for row in locked if _is_secret_of(row, secret)]
        for row in mine:
            _replace(row, new)
        current = push_subscriptions.valid_subscriptions().filter(endpoint_hash=digest)
        return sum(_is_secret_of(row, keys["auth"]) for row in current)


def _is_secret_of(row: PushSubscription, secret: str) -> bool:
    """Compare the bytes: browsers write the secret with or without padding."""
    try:
        stored, given = (push_keys.from_base64url(text) for text in (row.keys["auth"], secret))
    except (ValueError, KeyError):
        return False
    return hmac.compare_digest(stored, given)


def _replace(row: PushSubscription, new: Mapping[str, Any]) -> None:
    """Keep the row, with its messages and since when it is valid. Another row of the new endpoint ends."""
    is_owner = {"user_id": row.user_id, "technician_id": row.technician_id}
    same = PushSubscription.objects.of(row.organization_id).filter(endpoint_hash=new["endpoint_hash"], **is_owner)
    for other in same.exclude(pk=row.pk).defer("endpoint", "keys"):
        push_subscriptions.remove(other, actor=SYSTEM)
    for name, value in new.items():
        setattr(row, name, value)
    row.save(update_fields=list(new))
    push_subscriptions.append_event(row, "renewed", _actor_of(row))


def _actor_of(row: PushSubscription) -> Actor:
    """Return the person whose browser it is."""
    if row.technician is not None:
        return Actor("technician", row.technician.pk, row.technician.name)
    return Actor("user", row.user_id, str(row.user))
