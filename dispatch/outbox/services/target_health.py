"""Record the health of targets: open and close circuits; pause, resume, disable and enable endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import QuerySet

from dispatch.core import clock, events
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.runtime import queues
from dispatch.outbox import sql
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.rules import admission, deferrals, endpoint_failures
from dispatch.outbox.rules import responses as rules
from dispatch.outbox.rules.admission import Circuit
from dispatch.outbox.rules.deferrals import Deferrals
from dispatch.outbox.rules.endpoint_failures import Failures

log = structlog.get_logger(__name__)

POLLER = "outbox_poller"
GONE = 410
# The fields of a healthy target. `is_deferral_reported` is not among them: only a delivery ends that report.
_HEALTHY: dict[str, Any] = {
    "failures": 0,
    "openings": 0,
    "open_until": None,
    "probe_until": None,
    "failing_since": None,
    "failed_attempts": 0,
    "failed_messages": 0,
    "failed_message_id": None,
    "first_failed_at": None,
    "last_failed_at": None,
    "deferring_since": None,
    "last_deferred_at": None,
}


class Call(Protocol):
    """A request to a target: a delivery attempt or a direct request.

    `id` distinguishes the messages of a target; direct requests have negative ones.
    """

    @property
    def id(self) -> int: ...
    @property
    def target_id(self) -> int: ...
    @property
    def endpoint(self) -> Endpoint | None: ...
    @property
    def is_probe(self) -> bool: ...
    @property
    def is_target_in_trouble(self) -> bool: ...


class CallResult(Protocol):
    """The result of one request to a target."""

    @property
    def call(self) -> Call: ...
    @property
    def verdict(self) -> rules.Verdict: ...
    @property
    def ended_at(self) -> datetime: ...
    @property
    def status_code(self) -> int | None: ...


class _State(NamedTuple):
    """A row of sql.LOCK_TARGETS."""

    circuit: Circuit
    organization_id: int
    endpoint_id: int | None
    error: str
    failures: Failures
    deferrals: Deferrals


def is_concerned(results: Sequence[CallResult]) -> bool:
    """Return whether `update_circuits` would change anything."""
    return any(r.verdict.outcome != rules.DELIVERED or r.call.is_target_in_trouble for r in results)


def update_circuits(results: Sequence[CallResult], now: datetime) -> None:
    """Update the circuits of targets that failed or recovered, from these results in order."""
    relevant = [
        r
        for r in results
        if (r.verdict.is_of_target and (r.verdict.outcome != rules.DELIVERED or r.call.is_target_in_trouble))
        or _is_probe_unused(r)
    ]
    if not relevant:
        return
    ids = sorted({r.call.target_id for r in relevant})
    states: dict[int, _State] = {
        row[0]: _State(Circuit(*row[1:6]), row[6], row[7], row[8], Failures(*row[9:14]), Deferrals(*row[14:17]))
        for row in sql.fetch_all(sql.LOCK_TARGETS, {"ids": ids})
    }
    for target_id in states:  # a target is deleted with its endpoint
        before, organization_id, endpoint_id, error, failures, deferred = states[target_id]
        circuit = before
        for result in (r for r in relevant if r.call.target_id == target_id):
            if not result.verdict.is_of_target:
                circuit = replace(circuit, probe_until=None)
                continue
            circuit = _after(circuit, result, now)
            failures = _failures_after(failures, result)
            deferred = _deferrals_after(deferred, result)
            error = result.verdict.error if result.verdict.outcome != rules.DELIVERED else error
        if deferrals.is_lasting(deferred, timedelta(seconds=settings.OUTBOX_DEFERRAL_ALERT_S)):
            deferred = replace(deferred, is_reported=True)
            if endpoint_id:
                _report_deferrals(organization_id, endpoint_id, deferred, error)
        states[target_id] = _State(circuit, organization_id, endpoint_id, error[:200], failures, deferred)
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


def clear_failures(results: Sequence[CallResult], now: datetime) -> None:
    """Clear the failures and deferrals of targets that delivered later, whenever the attempt started."""
    ends: dict[int, datetime] = {}
    for result in results:
        if result.verdict.outcome == rules.DELIVERED:
            target_id = result.call.target_id
            ends[target_id] = max(result.ended_at, ends.get(target_id, result.ended_at))
    if ends:
        sql.execute(sql.CLEAR_FAILURES, {"ids": list(ends), "ends": list(ends.values()), "now": now})


def _is_probe_unused(result: CallResult) -> bool:
    """Return whether the attempt was a circuit's probe and did not reach the target: another may probe at once."""
    return result.call.is_probe and not result.verdict.is_of_target


def _failures_after(failures: Failures, result: CallResult) -> Failures:
    if result.verdict.outcome == rules.DELIVERED:
        return Failures()
    if not endpoint_failures.counts(result.verdict, result.status_code):
        return failures
    return endpoint_failures.add_failure(failures, result.call.id, result.ended_at)


def _deferrals_after(deferred: Deferrals, result: CallResult) -> Deferrals:
    if result.verdict.outcome != rules.DEFERRED:
        return deferred
    max_gap = timedelta(seconds=settings.OUTBOX_LONGEST_DEFERRAL_S) + endpoint_failures.MAX_GAP
    return deferrals.add_deferral(deferred, result.ended_at, max_gap=max_gap)


def _report_deferrals(organization_id: int, endpoint_id: int, deferred: Deferrals, error: str) -> None:
    assert deferred.since is not None
    events.append(
        organization_id,
        "endpoint.deferring",
        endpoint_id,
        since=deferred.since.isoformat(),
        since_text=f"No deliveries since {deferred.since:%Y-%m-%d %H:%M} UTC.",
        error=error,
    )


def _after(circuit: Circuit, result: CallResult, now: datetime) -> Circuit:
    if result.verdict.outcome in (rules.FAILED, rules.PERMANENT) and circuit.failing_since is None:
        circuit = replace(circuit, failing_since=result.ended_at)
    if result.verdict.outcome in rules.UNHEALTHY:
        return admission.after_failure(
            circuit,
            now,
            threshold=settings.OUTBOX_CIRCUIT_FAILURES,
            open_s=settings.OUTBOX_CIRCUIT_OPEN_S,
            longest_s=settings.OUTBOX_CIRCUIT_LONGEST_S,
            was_probe=result.call.is_probe,
        )
    return admission.after_answer(circuit, result.verdict.outcome)


def _save(states: dict[int, _State]) -> None:
    names = ("ids", "failures", "openings", "opens", "probes", "sinces", "errors",
             "attempts", "messages", "message_ids", "firsts", "lasts",
             "deferrings", "deferreds", "reports")  # fmt: skip
    values = [
        (
            key, c.failures, c.openings, c.open_until, c.probe_until, c.failing_since, error,
            f.attempts, f.messages, f.message_id, f.first_at, f.last_at, d.since, d.last_at, d.is_reported,
        )
        for key, (c, _, _, error, f, d) in states.items()
    ]  # fmt: skip
    sql.execute(sql.SAVE_TARGETS, dict(zip(names, sql.columns(values, len(names)), strict=True)))


def disable_failing() -> int:
    """Disable endpoints that have failed for OUTBOX_DISABLE_AFTER_S without a delivery; return how many.

    `rules.endpoint_failures` decides. Messages are kept and new ones are created: all are delivered once the
    endpoint is enabled.
    """
    now, after = clock.now(), timedelta(seconds=settings.OUTBOX_DISABLE_AFTER_S)
    targets = Target.objects.filter(
        first_failed_at__lte=now - after, endpoint__isnull=False, endpoint__disabled_at__isnull=True
    ).values_list(
        "endpoint_id",
        "failed_attempts",
        "failed_messages",
        "failed_message_id",
        "first_failed_at",
        "last_failed_at",
    )
    count = 0
    for endpoint_id, attempts, messages, message_id, first_at, last_at in targets:
        failures = Failures(attempts, messages, message_id, first_at, last_at)
        if not endpoint_failures.is_lasting(failures, now, after):
            continue
        since = failures.first_at
        reason = f"No deliveries since {since:%Y-%m-%d %H:%M} UTC."
        count += disable_endpoint(endpoint_id, reason, actor=SYSTEM)
    return count


def disable_gone(results: Sequence[CallResult]) -> None:
    """Disable the endpoints that answered 410 Gone, unless 410 is among their permanent codes.

    An endpoint that has another URL by now is not disabled. Call it after the commit: it locks the endpoints.
    """
    endpoints = [result.call.endpoint for result in results if result.status_code == GONE]
    for endpoint_id, url in sorted({(e.pk, e.url) for e in endpoints if e and GONE not in e.permanent_codes}):
        disable_endpoint(endpoint_id, "The receiver answered 410: it is gone.", actor=SYSTEM, url=url)


def _lock(endpoint_id: int) -> QuerySet[Endpoint]:
    return Endpoint.objects.select_for_update(no_key=True).defer(*Endpoint.CREDENTIALS).filter(pk=endpoint_id)


def disable_endpoint(endpoint_id: int, reason: str, *, actor: Actor, url: str | None = None) -> bool:
    """Disable an endpoint until it is enabled again; return False if it was disabled or deleted already.

    With `url`, return False also if its URL is another by now.
    """
    with transaction.atomic():
        endpoint = _lock(endpoint_id).first()
        if endpoint is None or endpoint.disabled_at is not None or (url is not None and endpoint.url != url):
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
    log.warning("endpoint_disabled", endpoint=endpoint.pk, reason=reason)
    return True


def enable_endpoint(endpoint_id: int, *, actor: Actor) -> bool:
    """Enable a disabled endpoint and close its circuit; waiting messages are sent.

    Return False if it was enabled already.
    """
    with transaction.atomic():
        endpoint = _lock(endpoint_id).get()
        if endpoint.disabled_at is None:
            return False
        endpoint.disabled_at, endpoint.disabled_reason = None, ""
        endpoint.save(update_fields=["disabled_at", "disabled_reason"])
        events.append(endpoint.organization_id, "endpoint.enabled", endpoint.pk, actor=actor, name=endpoint.name)
        # The report of its deferrals ended when it was disabled.
        reset_health(endpoint, actor=actor, is_deferral_reported=False)
        queues.notify_loop(POLLER)
    return True


def reset_health(endpoint: Endpoint, *, actor: Actor, **fields: Any) -> None:
    """Clear the failures and deferrals of an endpoint and close its circuit.

    Lock the endpoint first. `fields` are saved with its target.
    """
    own = Target.objects.filter(endpoint=endpoint)
    if (target := own.select_for_update(no_key=True).first()) is None:
        return
    if target.open_until is not None:
        events.append(
            endpoint.organization_id, "endpoint.circuit_closed", endpoint.pk, actor=actor, failures=0, error=""
        )
    own.update(**_HEALTHY, **fields)


def pause_endpoint(endpoint_id: int, reason: str, *, actor: Actor) -> bool:
    """Pause an endpoint: its messages are held. Return False if it was paused already."""
    return _set_paused(endpoint_id, True, reason, actor)


def resume_endpoint(endpoint_id: int, *, actor: Actor) -> bool:
    """Resume a paused endpoint. Return False if it was not paused."""
    return _set_paused(endpoint_id, False, "", actor)


def _set_paused(endpoint_id: int, paused: bool, reason: str, actor: Actor) -> bool:
    with transaction.atomic():
        endpoint = _lock(endpoint_id).get()
        if endpoint.is_paused == paused:
            return False
        endpoint.is_paused, endpoint.paused_reason = paused, reason[:200]
        endpoint.save(update_fields=["is_paused", "paused_reason"])
        kind = "endpoint.paused" if paused else "endpoint.resumed"
        events.append(endpoint.organization_id, kind, endpoint.pk, actor=actor, name=endpoint.name, reason=reason)
        if not paused:
            queues.notify_loop(POLLER)
    return True
