"""Which policy a job gets: the rows as they are now, field by field, down to the settings."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from dispatch.core.problems import Conflict
from dispatch.jobs import sql
from dispatch.jobs.models import DispatchPolicy, Job
from dispatch.jobs.rules import CascadePolicy, effective_policy, policy_problems
from dispatch.jobs.rules.policy import FIELDS


def for_service_type(organization_id: int, service_type_id: int | None) -> CascadePolicy:
    """What a job of that service type would be offered by if it started now (None: the organization's own)."""
    return and_skills(organization_id, service_type_id)[0]


def and_skills(organization_id: int, service_type_id: int | None) -> tuple[CascadePolicy, list[int]]:
    """As `for_service_type`, with the ids of the skills that the service type takes now."""
    rows, skills = sql.ways_of(organization_id, service_type_id)
    return effective_policy(rows, settings.DISPATCH_POLICY_DEFAULTS), skills


def defaults() -> CascadePolicy:
    """The installation's own, from the settings."""
    return effective_policy([], settings.DISPATCH_POLICY_DEFAULTS)


def frozen(job: Job) -> CascadePolicy:
    """The policy that the job started with."""
    return CascadePolicy.from_json(job.policy, settings.DISPATCH_POLICY_DEFAULTS)


def problems_of(edited: DispatchPolicy) -> dict[str, str]:
    """What would not work if `edited` were saved, by field: with the values it falls back to, and, when it is the
    organization's, for each service type that falls back to it."""
    if not edited.organization_id:
        return {}
    own = DispatchPolicy.objects.of(edited.organization_id).exclude(pk=edited.pk)
    defaults = settings.DISPATCH_POLICY_DEFAULTS
    if edited.service_type_id is not None:
        above = [_values(row) for row in own.filter(service_type=None)]
        return policy_problems(effective_policy([_values(edited), *above], defaults))
    found = policy_problems(effective_policy([_values(edited)], defaults))
    for field, text in _problems_below(edited, [_values(edited)]).items():
        found.setdefault(field, text)
    return found


def check_removable(row: DispatchPolicy) -> None:
    """Raises Conflict when a service type's policy would not work with what it falls back to without `row`."""
    if row.service_type_id is None and (problems := _problems_below(row, [])):
        raise Conflict(f"This policy is needed. {' '.join(problems.values())}")


def _problems_below(organizations: DispatchPolicy, above: list[dict[str, Any]]) -> dict[str, str]:
    """What would not work, by field, for service types whose policies fall back to `above`."""
    found: dict[str, str] = {}
    below = DispatchPolicy.objects.of(organizations.organization_id).exclude(service_type=None)
    for row in below.select_related("service_type"):
        effective = effective_policy([_values(row), *above], settings.DISPATCH_POLICY_DEFAULTS)
        for field, text in policy_problems(effective).items():
            found.setdefault(field, f"For {row.service_type}: {text}")
    return found


def _values(row: DispatchPolicy) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}
