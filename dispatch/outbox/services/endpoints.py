"""Manage endpoints: create, change and delete them, rotate their secrets, send test messages.

`target_health` pauses and disables them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Min, Q

from accounts.models import Organization
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.http import webhook_signing as signing
from dispatch.core.languages import gettext as _
from dispatch.core.runtime import queues
from dispatch.outbox.models import Endpoint, Message, MessageGroup, Mode, Status, Target
from dispatch.outbox.rules.health import Condition, Health
from dispatch.outbox.rules.health import assess_health as judge
from dispatch.outbox.services import authentication
from dispatch.outbox.services.intake import NewMessage, accept_messages, default_pool
from dispatch.outbox.services.target_health import POLLER, reset_health

OVERLAP_S = 24 * 3600
MAX_OVERLAP_S = 30 * 24 * 3600
MAX_FORMER = 5
TEST_TYPE = "endpoint.test"
# Counting stops here and means "this many or more".
COUNT_LIMIT = 10_000
SECRET_FIELDS = [
    "secret", "secret_since", "previous_secret", "previous_secret_since", "previous_secret_until",
    "former_secrets",
]  # fmt: skip
# Changing one of these may end a failure, as a new URL may.
CONNECTION_FIELDS = {*authentication.OAUTH_FIELDS, "client_certificate", "client_key"}
# The condition under which `assess_health` finds an endpoint that is neither paused nor disabled not healthy.
HAS_FAILURES = (
    Q(target__failures__gt=0)
    | Q(target__open_until__isnull=False)
    | Q(target__failing_since__isnull=False)
    | Q(target__deferring_since__isnull=False)
)
HAS_MESSAGES = "This endpoint has messages, which must be kept. Disable it instead."


def create_endpoint(
    organization: Organization, fields: Mapping[str, Any], *, actor: Actor
) -> tuple[Endpoint, str]:
    """Create an endpoint; return it with its signing secret, which is not shown again.

    Without a `pool`, it gets the organization's default pool. Raises Conflict if the organization has too many.
    """
    secret = signing.new_secret()
    with transaction.atomic():
        Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
        if Endpoint.objects.of(organization).count() >= settings.OUTBOX_MAX_ENDPOINTS:
            words = _("An organization has at most {most} endpoints.")
            raise Conflict(words.format(most=f"{settings.OUTBOX_MAX_ENDPOINTS:,}"), code="too_many")
        pool = fields.get("pool") or default_pool(organization.pk)
        endpoint = Endpoint.objects.create(
            **{**fields, "organization": organization, "pool": pool, "secret": secret}
        )
        Target.objects.create(organization=organization, endpoint=endpoint)
        _append_event(endpoint, "added", actor, url=endpoint.url)
    return endpoint, secret


def change_endpoint(endpoint_id: int, changes: Mapping[str, Any], *, actor: Actor) -> Endpoint:
    """Change fields; attempts in progress continue with the old ones.

    A new URL, certificate or OAuth setting resets the endpoint's health.
    """
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update(no_key=True).get(pk=endpoint_id)
        changed = {name: value for name, value in changes.items() if getattr(endpoint, name) != value}
        if not changed:
            return endpoint
        for name, value in changed.items():
            setattr(endpoint, name, value)
        endpoint.save(update_fields=list(changed))
        _append_event(endpoint, "changed", actor, fields=sorted(changed))
        if "url" in changed or CONNECTION_FIELDS & changed.keys():
            reset_health(endpoint, actor=actor, last_error="")
        if "client_certificate" in changed or "client_certificate_until" in changed:
            _append_event(endpoint, "certificate_replaced", actor)
        queues.notify_loop(POLLER)
    return endpoint


def delete_endpoint(endpoint_id: int, *, actor: Actor) -> None:
    """Delete an endpoint without messages. Raises Conflict if it has any, since messages are kept."""
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update(no_key=True).get(pk=endpoint_id)
        if Message.objects.filter(group__endpoint=endpoint).exists():
            raise Conflict(HAS_MESSAGES, code="has_messages")
        _append_event(endpoint, "deleted", actor)
        try:
            MessageGroup.objects.filter(endpoint=endpoint).delete()
            Target.objects.filter(endpoint=endpoint).delete()
            endpoint.delete()
        except IntegrityError:  # a message was just created
            raise Conflict(HAS_MESSAGES, code="has_messages") from None


def rotate_secret(
    endpoint_id: int, *, actor: Actor, overlap_s: float = OVERLAP_S
) -> tuple[Endpoint, str, datetime | None]:
    """Replace the secret; return (endpoint, new secret, when the previous one expires).

    The new secret is not shown again. The previous one stays valid for `overlap_s` seconds; 0 revokes it at once,
    for a secret that has leaked, and all earlier ones with it. Earlier secrets keep their own overlaps, at most
    MAX_FORMER of them: the receiver may not know the secret of a rotation whose response was lost.
    """
    secret, now = signing.new_secret(), clock.now()
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update(no_key=True).get(pk=endpoint_id)
        until = now + timedelta(seconds=min(overlap_s, MAX_OVERLAP_S)) if overlap_s > 0 else None
        former = endpoint.former_secrets_at(now)[:MAX_FORMER] if until else []
        kept: Any = [[old, *(at.isoformat() if at else None for at in times)] for old, *times in former]
        endpoint.former_secrets = kept
        endpoint.previous_secret = endpoint.secret if until else ""
        endpoint.previous_secret_since = (endpoint.secret_since or endpoint.created_at) if until else None
        endpoint.previous_secret_until, endpoint.secret, endpoint.secret_since = until, secret, now
        endpoint.save(update_fields=SECRET_FIELDS)
        _append_event(endpoint, "secret_rotated", actor, overlap_s=int(overlap_s))
    return endpoint, secret, until


def send_test(endpoint: Endpoint, *, actor: Actor) -> int:
    """Send a message of type `endpoint.test`; return its id. Its attempts show the result.

    The message is outside any order, so that it neither waits for other messages nor blocks them. A paused or
    disabled endpoint receives it once it is resumed or enabled.
    """
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
    (accepted,) = accept_messages(endpoint.organization_id, [new], actor=actor)
    return accepted.id


@dataclass(frozen=True)
class EndpointReport:
    """An endpoint's health and its waiting messages. Counts stop at COUNT_LIMIT."""

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
    """Return the endpoint's health, for lists; reads only `endpoint.target`."""
    return judge(_condition(endpoint), clock.now(), zone)


def build_report(endpoint: Endpoint, zone: str = "UTC") -> EndpointReport:
    """Report on one endpoint; times are shown in `zone`."""
    seen, now = _condition(endpoint), clock.now()
    own = Message.objects.of(endpoint.organization_id).filter(endpoint=endpoint)
    # Counted separately, to match the partial indexes of pending messages.
    ordered = own.filter(~Q(mode=Mode.IMMEDIATE), status=Status.PENDING)
    immediate = own.filter(target__endpoint=endpoint, mode=Mode.IMMEDIATE, status=Status.PENDING)
    due = [rows.filter(due_at__lte=now).aggregate(at=Min("due_at"))["at"] for rows in (ordered, immediate)]
    return EndpointReport(
        health=judge(seen, now, zone),
        pending=_count_limited(ordered) + _count_limited(immediate),
        in_flight=_count_limited(own.filter(in_flight=True)),
        errors=_count_limited(own.filter(status=Status.ERROR)),
        blocked_groups=MessageGroup.objects.of(endpoint.organization_id)
        .filter(endpoint=endpoint, blocked_by__isnull=False)
        .count(),
        oldest_due_at=min(filter(None, due), default=None),
        last_error=seen.last_error,
        failures=seen.failures,
        open_until=seen.open_until,
    )


def _count_limited(rows: Any) -> int:
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
        probe_until=target.probe_until,
        last_error=target.last_error,
        deferring_since=target.deferring_since,
    )


def _append_event(endpoint: Endpoint, verb: str, actor: Actor, **data: Any) -> None:
    events.append(
        endpoint.organization_id, f"endpoint.{verb}", endpoint.pk, actor=actor, name=endpoint.name, **data
    )
