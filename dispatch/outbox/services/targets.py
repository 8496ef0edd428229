"""The health of who is called: the circuit breaker, and the endpoint that fails for days."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock, events, queues
from dispatch.core.events import SYSTEM, Actor
from dispatch.outbox import sql
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.rules import calls as rules
from dispatch.outbox.rules import rooms
from dispatch.outbox.rules.rooms import Circuit

if TYPE_CHECKING:
    from dispatch.outbox.services.finishing import Result

log = structlog.get_logger(__name__)

POLLER = "outbox_poller"


def is_concerned(results: Sequence[Result]) -> bool:
    """Whether `heed` would do anything."""
    return any(r.verdict.outcome != rules.DELIVERED or r.call.is_target_in_trouble for r in results)


def heed(results: Sequence[Result], now: datetime) -> None:
    """Moves the circuits of the targets that failed, or that answer again, by these results in their order."""
    told = [r for r in results if r.verdict.outcome != rules.DELIVERED or r.call.is_target_in_trouble]
    if not told:
        return
    ids = sorted({r.call.target_id for r in told})
    states: dict[int, tuple[Circuit, int, int | None, str]] = {
        row[0]: (Circuit(*row[1:6]), row[6], row[7], row[8]) for row in sql.rows(sql.LOCK_TARGETS, {"ids": ids})
    }
    for target_id in ids:
        before, organization_id, endpoint_id, error = states[target_id]
        circuit = before
        for result in (r for r in told if r.call.target_id == target_id):
            circuit = _after(circuit, result, now)
            error = result.verdict.error if result.verdict.outcome != rules.DELIVERED else error
        states[target_id] = (circuit, organization_id, endpoint_id, error[:200])
        if (before.open_until is None) != (circuit.open_until is None):
            subject = "endpoint" if endpoint_id else "target"
            verb = "circuit_opened" if circuit.open_until else "circuit_closed"
            events.append(
                organization_id,
                f"{subject}.{verb}",
                endpoint_id or target_id,
                failures=circuit.failures,
                error=error,
            )
    _save(states)


def _after(circuit: Circuit, result: Result, now: datetime) -> Circuit:
    if result.verdict.outcome in rules.UNHEALTHY:
        return rooms.after_failure(
            circuit,
            now,
            threshold=settings.OUTBOX_CIRCUIT_FAILURES,
            open_s=settings.OUTBOX_CIRCUIT_OPEN_S,
            longest_s=settings.OUTBOX_CIRCUIT_LONGEST_S,
            was_probe=result.call.is_probe,
        )
    return rooms.after_answer(circuit, result.verdict.outcome, now)


def _save(states: dict[int, tuple[Circuit, int, int | None, str]]) -> None:
    names = ("ids", "failures", "openings", "opens", "probes", "sinces", "errors")
    values = [
        (key, c.failures, c.openings, c.open_until, c.probe_until, c.failing_since, error)
        for key, (c, _, _, error) in states.items()
    ]
    sql.do(sql.SAVE_TARGETS, dict(zip(names, sql.columns(values, len(names)), strict=True)))


def disable_failing() -> int:
    """Disables the endpoints that have delivered nothing, and failed, for OUTBOX_DISABLE_AFTER_S; how many. Their
    messages are kept, and new ones are made: all go on once somebody enables them."""
    before = clock.now() - timedelta(seconds=settings.OUTBOX_DISABLE_AFTER_S)
    failing = Target.objects.filter(
        failing_since__lte=before, endpoint__isnull=False, endpoint__disabled_at__isnull=True
    )
    count = 0
    for endpoint_id, since in failing.values_list("endpoint_id", "failing_since"):
        reason = f"Nothing was delivered since {since:%Y-%m-%d %H:%M} UTC."
        count += disable(endpoint_id, reason, actor=SYSTEM)
    return count


def disable(endpoint_id: int, reason: str, *, actor: Actor) -> bool:
    """Switches an endpoint off until somebody enables it; False when it already is."""
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
        if endpoint.disabled_at is not None:
            return False
        endpoint.disabled_at, endpoint.disabled_reason = clock.now(), reason[:200]
        endpoint.save(update_fields=["disabled_at", "disabled_reason"])
        events.append(
            endpoint.organization_id,
            "endpoint.disabled",
            endpoint.pk,
            actor=actor,
            name=endpoint.name,
            reason=reason,
        )
    log.warning("an endpoint is disabled", endpoint=endpoint.pk, reason=reason)
    return True


def enable(endpoint_id: int, *, actor: Actor) -> bool:
    """Switches a disabled endpoint on again, its circuit closed; what waited goes on. False when it was on."""
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
        if endpoint.disabled_at is None:
            return False
        endpoint.disabled_at, endpoint.disabled_reason = None, ""
        endpoint.save(update_fields=["disabled_at", "disabled_reason"])
        Target.objects.filter(endpoint=endpoint).update(
            failures=0, openings=0, open_until=None, probe_until=None, failing_since=None
        )
        events.append(endpoint.organization_id, "endpoint.enabled", endpoint.pk, actor=actor, name=endpoint.name)
        queues.wake(POLLER)
    return True


def pause(endpoint_id: int, reason: str, *, actor: Actor) -> bool:
    """Holds an endpoint's messages; False when they are held already."""
    return _set_paused(endpoint_id, True, reason, actor)


def resume(endpoint_id: int, *, actor: Actor) -> bool:
    """Lets a paused endpoint's messages go on; False when they were going."""
    return _set_paused(endpoint_id, False, "", actor)


def _set_paused(endpoint_id: int, paused: bool, reason: str, actor: Actor) -> bool:
    with transaction.atomic():
        endpoint = Endpoint.objects.select_for_update().get(pk=endpoint_id)
        if endpoint.is_paused == paused:
            return False
        endpoint.is_paused, endpoint.paused_reason = paused, reason[:200]
        endpoint.save(update_fields=["is_paused", "paused_reason"])
        kind = "endpoint.paused" if paused else "endpoint.resumed"
        events.append(endpoint.organization_id, kind, endpoint.pk, actor=actor, name=endpoint.name, reason=reason)
        if not paused:
            queues.wake(POLLER)
    return True
