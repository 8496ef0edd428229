"""Endpoints as people set them up: added, changed, deleted, their secrets replaced, tried out. Pausing and
disabling is in `targets`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Min, Q

from accounts.models import Organization
from dispatch.core import clock, events, queues
from dispatch.core import webhook_signing as signing
from dispatch.core.events import Actor
from dispatch.core.problems import Conflict
from dispatch.outbox.models import Endpoint, Message, MessageGroup, Mode, Status, Target
from dispatch.outbox.rules.health import Condition, Health
from dispatch.outbox.rules.health import health as judge
from dispatch.outbox.services.intake import NewMessage, accept, default_pool
from dispatch.outbox.services.targets import POLLER

OVERLAP_S = 24 * 3600
LONGEST_OVERLAP_S = 30 * 24 * 3600
TEST_TYPE = "endpoint.test"
# Counting stops here: "this many or more".
COUNT_LIMIT = 10_000
HAS_MESSAGES = "This endpoint has messages, which are kept. Disable it instead."


def add(organization: Organization, fields: Mapping[str, Any], *, actor: Actor) -> tuple[Endpoint, str]:
    """A new endpoint, and its signing secret, which is not shown again. Without a `pool` it gets the
    organization's default one."""
    secret = signing.new_secret()
    with transaction.atomic():
        pool = fields.get("pool") or default_pool(organization.pk)
        made = Endpoint.objects.create(**{**fields, "organization": organization, "pool": pool, "secret": secret})
        Target.objects.create(organization=organization, endpoint=made)
        _note(made, "added", actor, url=made.url)
    return made, secret


def change(endpoint_id: int, changes: Mapping[str, Any], *, actor: Actor) -> Endpoint:
    """Changes fields; calls that run go on as they began. A new address begins with a clean bill of health."""
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
        changed = {name: value for name, value in changes.items() if getattr(endpoint, name) != value}
        if not changed:
            return endpoint
        for name, value in changed.items():
            setattr(endpoint, name, value)
        endpoint.save(update_fields=list(changed))
        if "url" in changed:
            Target.objects.filter(endpoint=endpoint).update(
                failures=0, openings=0, open_until=None, probe_until=None, failing_since=None, last_error=""
            )
        _note(endpoint, "changed", actor, fields=sorted(changed))
        queues.wake(POLLER)
    return endpoint


def delete(endpoint_id: int, *, actor: Actor) -> None:
    """Deletes an endpoint that never had a message. Raises Conflict for any other: messages are kept."""
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
        if Message.objects.filter(group__endpoint=endpoint).exists():
            raise Conflict(HAS_MESSAGES, code="has_messages")
        _note(endpoint, "deleted", actor)
        try:
            MessageGroup.objects.filter(endpoint=endpoint).delete()
            Target.objects.filter(endpoint=endpoint).delete()
            endpoint.delete()
        except IntegrityError:  # one arrived just now
            raise Conflict(HAS_MESSAGES, code="has_messages") from None


def rotate_secret(
    endpoint_id: int, *, actor: Actor, overlap_s: float = OVERLAP_S
) -> tuple[Endpoint, str, datetime | None]:
    """A new secret, shown only here. For `overlap_s` seconds the one before signs too (0: not at all, for a secret
    that got out). Returns (endpoint, secret, until when the one before signs)."""
    secret = signing.new_secret()
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
        until = clock.now() + timedelta(seconds=min(overlap_s, LONGEST_OVERLAP_S)) if overlap_s > 0 else None
        endpoint.previous_secret = endpoint.secret if until else ""
        endpoint.previous_secret_until, endpoint.secret = until, secret
        endpoint.save(update_fields=["secret", "previous_secret", "previous_secret_until"])
        _note(endpoint, "secret_rotated", actor, overlap_s=int(overlap_s))
    return endpoint, secret, until


def send_test(endpoint: Endpoint, *, actor: Actor) -> int:
    """Sends a message of type `endpoint.test`, outside of any order, so that it neither waits for others nor holds
    them up. Its id; how it went is in its attempts. A paused or disabled endpoint gets it once it goes on."""
    now = clock.now()
    body = {
        "type": TEST_TYPE,
        "timestamp": now.isoformat(),
        "data": {"endpoint": {"id": endpoint.pk, "name": endpoint.name}, "sent_by": actor.label},
    }
    new = NewMessage(
        type=TEST_TYPE,
        payload=json.dumps(body, separators=(",", ":")),
        endpoint=endpoint,
        group="test",
        mode=Mode.IMMEDIATE,
        expires_at=now + timedelta(days=1),
    )
    (accepted,) = accept(endpoint.organization_id, [new], actor=actor)
    return accepted.id


@dataclass(frozen=True)
class Report:
    """An endpoint's health, and what waits there. Counts stop at COUNT_LIMIT."""

    health: Health
    pending: int
    in_flight: int
    errors: int
    blocked_groups: int
    oldest_due_at: datetime | None
    last_error: str
    failures: int
    open_until: datetime | None


def health_of(endpoint: Endpoint, zone: str = "UTC") -> Health:
    """For lists: reads `endpoint.target`, nothing else."""
    return judge(_condition(endpoint), clock.now(), zone)


def report(endpoint: Endpoint, zone: str = "UTC") -> Report:
    """All about one endpoint; words tell times in `zone`."""
    seen, now = _condition(endpoint), clock.now()
    own = Message.objects.of(endpoint.organization_id).filter(endpoint=endpoint)
    # Counted apart, as the indexes of what is pending are kept.
    ordered = own.filter(~Q(mode=Mode.IMMEDIATE), status=Status.PENDING)
    immediate = own.filter(target__endpoint=endpoint, mode=Mode.IMMEDIATE, status=Status.PENDING)
    due = [rows.filter(due_at__lte=now).aggregate(at=Min("due_at"))["at"] for rows in (ordered, immediate)]
    return Report(
        health=judge(seen, now, zone),
        pending=_counted(ordered) + _counted(immediate),
        in_flight=_counted(own.filter(in_flight=True)),
        errors=_counted(own.filter(status=Status.ERROR)),
        blocked_groups=MessageGroup.objects.of(endpoint.organization_id)
        .filter(endpoint=endpoint, blocked_by__isnull=False)
        .count(),
        oldest_due_at=min(filter(None, due), default=None),
        last_error=seen.last_error,
        failures=seen.failures,
        open_until=seen.open_until,
    )


def _counted(rows: Any) -> int:
    return rows.order_by()[:COUNT_LIMIT].count()


def _condition(endpoint: Endpoint) -> Condition:
    target: Target = getattr(endpoint, "target", None) or Target()
    return Condition(
        is_paused=endpoint.is_paused,
        paused_reason=endpoint.paused_reason,
        disabled_at=endpoint.disabled_at,
        disabled_reason=endpoint.disabled_reason,
        failures=target.failures,
        failing_since=target.failing_since,
        open_until=target.open_until,
        last_error=target.last_error,
    )


def _note(endpoint: Endpoint, verb: str, actor: Actor, **data: Any) -> None:
    events.append(
        endpoint.organization_id, f"endpoint.{verb}", endpoint.pk, actor=actor, name=endpoint.name, **data
    )
