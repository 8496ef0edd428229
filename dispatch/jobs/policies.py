"""Resolve the dispatch policy of a job: service type → organization → settings, field by field."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django.conf import settings

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.languages import gettext as _
from dispatch.jobs import sql
from dispatch.jobs.models import DispatchPolicy, Job
from dispatch.jobs.rules import CascadePolicy, Preferences, effective_policy, policy_problems
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.jobs.rules.policy import FIELDS
from dispatch.jobs.rules.quiet_hours import FIELDS as QUIET_FIELDS
from dispatch.jobs.rules.quiet_hours import QuietHours
from dispatch.jobs.rules.workload import job_time
from dispatch.jobs.sql import Skills
from dispatch.technicians.rules import JobTime

_FROZEN = "_frozen_policy"  # of a Job: the stored policy, the defaults, and what they amount to


def for_service_type(organization_id: int, service_type_id: int | None) -> CascadePolicy:
    """Return the policy that a job of that service type gets now; for None, the organization's policy."""
    return load_chain(organization_id, service_type_id).cascade


@dataclass(frozen=True)
class PolicyChain:
    """What applies to jobs of a service type now: its policies, most specific first, and its skills."""

    rows: list[dict[str, Any]]
    skills: Skills

    @property
    def cascade(self) -> CascadePolicy:
        return effective_policy(self.rows, settings.DISPATCH_POLICY_DEFAULTS)

    @property
    def quiet(self) -> QuietHours:
        return QuietHours.of(self.rows)

    @property
    def duplicate_hours(self) -> int:
        """For how many hours an open job with the same phone or address is a probable duplicate; 0: never."""
        chosen = (row["duplicate_hours"] for row in self.rows if row["duplicate_hours"] is not None)
        return int(next(chosen, settings.DUPLICATE_HOURS))


def load_chain(organization_id: int, service_type_id: int | None) -> PolicyChain:
    """Load what applies to a job of that service type now; for None, to the organization."""
    return find_chain(organization_id, service_type_id)()


def find_chain(organization_id: int, service_type_id: int | None) -> Callable[[], PolicyChain]:
    """Return a function for what `load_chain` returns. A pipeline does not wait for it."""
    find = sql.policy_chain(organization_id, service_type_id)
    return lambda: PolicyChain(*find())


def preferences_of(job: Job, skills: Skills) -> Preferences:
    """Return what the job prefers: skills of its service type, and the customer's technician."""
    return Preferences(skills.preferred, job.preferred_technician_id)


def time_of(job: Job, minutes: int | None, window: ArrivalWindow | None = None) -> JobTime:
    """Return when the job would occupy a technician, in a new arrival window if one is given.

    `minutes`: the usual duration of its service type.
    """
    return job_time(window or job.arrival_window, job.expected_minutes or minutes, clock.now())


def quiet_hours(organization_id: int, service_type_id: int | None) -> QuietHours:
    """Return the quiet hours that apply now. They are not frozen into jobs."""
    return load_chain(organization_id, service_type_id).quiet


def duplicate_hours(organization_id: int, service_type_id: int | None) -> int:
    """Return for how many hours an open job with the same phone or address is a probable duplicate; 0: never."""
    return load_chain(organization_id, service_type_id).duplicate_hours


def default_policy() -> CascadePolicy:
    """Return the installation's policy from the settings."""
    return effective_policy([], settings.DISPATCH_POLICY_DEFAULTS)


def frozen_policy(job: Job) -> CascadePolicy:
    """Return the policy frozen into the job when it started. The instance keeps it as long as it has the same."""
    stored, defaults = job.policy, settings.DISPATCH_POLICY_DEFAULTS
    known = job.__dict__.get(_FROZEN)
    if known is None or known[0] is not stored or known[1] is not defaults:
        known = job.__dict__[_FROZEN] = stored, defaults, CascadePolicy.from_json(stored, defaults)
    policy: CascadePolicy = known[2]
    return policy


def search_radius(job: Job) -> int:
    """Return the search radius of the job's current round, in meters."""
    return frozen_policy(job).radius_in_round(job.round - job.first_round + 1)


def widest_radius(job: Job) -> int:
    """Return the radius of the last round in meters, or 0 if no later round of the job searches a wider radius."""
    policy = frozen_policy(job)
    widens = job.status == Job.Status.DISPATCHING and policy.widens_after(job.round - job.first_round + 1)
    return policy.radius_in_round(policy.rounds) if widens else 0


def problems_of(edited: DispatchPolicy) -> dict[str, str]:
    """Return the contradictions that saving `edited` would cause: field → message.

    Empty fields are checked with their fallback values. The organization's policy is also checked with the policy
    of each service type, which falls back to it.
    """
    if not edited.organization_id:
        return {}
    others = DispatchPolicy.objects.of(edited.organization_id).exclude(pk=edited.pk)
    if problems := _quiet_problems(edited, others):
        return problems
    defaults = settings.DISPATCH_POLICY_DEFAULTS
    if edited.service_type_id is not None:
        above = [_values(row) for row in others.filter(service_type=None)]
        return policy_problems(effective_policy([_values(edited), *above], defaults))
    problems = policy_problems(effective_policy([_values(edited)], defaults))
    for field, text in _problems_below(edited, [_values(edited)]).items():
        problems.setdefault(field, text)
    return problems


def _quiet_problems(edited: DispatchPolicy, own: Any) -> dict[str, str]:
    """Return the contradictions in the quiet hours, with the values they fall back to."""
    rows = [row for row in (edited, own.filter(service_type=None).first()) if row is not None]
    quiet = QuietHours.of([{name: getattr(row, name) for name in QUIET_FIELDS} for row in rows])
    if quiet.quiet_from == quiet.quiet_until:
        return {"quiet_until": _("Must differ from the beginning of the quiet hours.")}
    return {}


def check_removable(row: DispatchPolicy) -> None:
    """Raise Conflict if a service type's policy would be invalid without `row`."""
    if row.service_type_id is None and (problems := _problems_below(row, [])):
        raise Conflict(_("Other policies depend on this one.") + " " + " ".join(problems.values()))


def _problems_below(policy: DispatchPolicy, above: list[dict[str, Any]]) -> dict[str, str]:
    """Return the contradictions in the policies of service types that fall back to `above`: field → message."""
    problems: dict[str, str] = {}
    below = DispatchPolicy.objects.of(policy.organization_id).exclude(service_type=None)
    for row in below.select_related("service_type"):
        effective = effective_policy([_values(row), *above], settings.DISPATCH_POLICY_DEFAULTS)
        for field, text in policy_problems(effective).items():
            problems.setdefault(
                field, _("For {service}: {problem}").format(service=row.service_type, problem=text)
            )
    return problems


def _values(row: DispatchPolicy) -> dict[str, Any]:
    return {name: getattr(row, name) for name in FIELDS}
