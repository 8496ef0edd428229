"""Rest unhealthy caller numbers: they are avoided for a time while another number of their pool is healthy.

A number returns by itself, and only its calls since then count. The last healthy number of a pool never rests,
because the others rest only while one is healthy; and if all of a pool's numbers rest, all of them are used.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import structlog
from django.db import transaction
from django.db.models import Q

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, events
from dispatch.core.db.isolation import run_each
from dispatch.core.events import SYSTEM, Actor
from dispatch.telephony import number_health
from dispatch.telephony.models import NumberHealthPolicy
from dispatch.telephony.number_health import CallHealth

log = structlog.get_logger(__name__)


def judge_numbers() -> int:
    """Let unhealthy numbers rest, if another number of their pool is healthy. Return how many began to rest."""
    health = number_health.read_call_health()
    suspects = OutboundNumber.objects.filter(pk__in=health).values_list("pool_id", flat=True)
    return run_each(
        lambda pool_id: _judge_pool(pool_id, health), sorted(set(suspects)), event="number_health_not_judged"
    )


def _judge_pool(pool_id: int, health: Mapping[int, CallHealth]) -> int:
    """Judge the numbers of a pool that are in use. A number without enough calls counts as healthy."""
    now = clock.now()
    in_use = OutboundNumber.objects.filter(
        Q(account__outage="") | Q(account__is_on_trial=True),
        pool_id=pool_id, is_paused=False, pool__is_paused=False, account__is_active=True,
    ).select_related("organization")  # fmt: skip
    numbers = [number for number in in_use.order_by("pk") if not number_health.is_resting(number, now)]
    if len(numbers) < 2:
        return 0
    policy = number_health.policy_of(numbers[0].organization_id)
    problems = {number: health.get(number.pk, CallHealth()).problem(policy) for number in numbers}
    if all(problems.values()):
        return 0
    return sum(_begin_rest(number, problem, policy) for number, problem in problems.items() if problem)


def _begin_rest(number: OutboundNumber, reason: str, policy: NumberHealthPolicy) -> bool:
    now = clock.now()
    until = now + timedelta(hours=policy.rest_hours)
    with transaction.atomic():
        awake = OutboundNumber.objects.filter(Q(rests_until=None) | Q(rests_until__lte=now), pk=number.pk)
        if not awake.update(rests_until=until, rest_reason=reason):
            return False
        shown = until.astimezone(ZoneInfo(number.organization.time_zone))
        _append(number, "rested", reason=reason, until=until.isoformat(), until_words=f"{shown:%a %H:%M %Z}")
    log.warning("number_rested", number=number.pk, reason=reason)
    return True


def end_rest(number: OutboundNumber, *, actor: Actor) -> bool:
    """Use the number again now. Return False if it did not rest. Its earlier calls no longer count."""
    now = clock.now()
    with transaction.atomic():
        if not OutboundNumber.objects.filter(pk=number.pk, rests_until__gt=now).update(rests_until=now):
            return False
        _append(number, "returned", actor)
    return True


def save_policy(policy: NumberHealthPolicy, changed: Mapping[str, Any], *, actor: Actor) -> None:
    """Save the thresholds from their form: a new row, or its `changed` fields."""
    names = [name for name in changed if name != "organization"]
    with transaction.atomic():
        is_new = policy.pk is None
        if is_new:
            policy.save()
        elif names:
            policy.save(update_fields=names)
        else:
            return
        verb = "added" if is_new else "changed"
        data = {name: changed[name] for name in names}
        events.append(policy.organization_id, f"number_health.{verb}", policy.pk, actor=actor, **data)


def _append(number: OutboundNumber, verb: str, actor: Actor = SYSTEM, **data: Any) -> None:
    events.append(number.organization_id, f"number.{verb}", number.pk, actor=actor, name=str(number), **data)
