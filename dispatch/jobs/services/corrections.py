"""Correct an open job: the location, the phone, the priority, the arrival window and other details.

The rules of `actions` apply.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError

from accounts.auth.throttling import parse_rate
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.models import Event
from dispatch.core.stored_texts import mark_stored
from dispatch.jobs import geocoding, policies
from dispatch.jobs.models import Job, Priority
from dispatch.jobs.rules import Action, Outcome
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.jobs.rules.duplicates import address_key
from dispatch.jobs.services import customer_texts, notices, ranking, slots, transitions, travel
from dispatch.jobs.services.actions import (
    AddressNotFound,
    Correction,
    begin_dispatch_again,
    locked_for_action,
    raise_illegal_transition,
)
from dispatch.jobs.services.notices import News

# Changes of which the technician is not notified.
# Why offers were withdrawn, stored with them.
ADDRESS_CORRECTED = mark_stored("the address was corrected")
ADDRESS, PHONE, PRIORITY = mark("address"), mark("phone"), mark("priority")
WINDOW_CHANGED = mark_stored("the arrival window was changed")
_IS_QUIET = frozenset({"priority", "customer's name", "duration", "notes"})
# Recorded in the Event as the origin of a customer's change, so that dispatchers are notified.
BY_CUSTOMER = "customer"
# Field → its name in the history.
_DETAILS = {
    "customer_name": mark("customer's name"),
    "window_start": mark("arrival window"),
    "expected_minutes": mark("duration"),
    "notes": mark("notes"),
}


class Keep(Enum):
    """The type of KEEP: the value of a detail that stays as it is."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True)
class Details:
    """The details of a job as a form shows them. KEEP leaves a value as it is; `window`: None removes it."""

    customer_name: str | Keep = KEEP
    notes: str | Keep = KEEP
    window: ArrivalWindow | Keep | None = KEEP
    expected_minutes: int | Keep | None = KEEP


def correct(
    job_id: int,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
    correction: Correction,
    customer_phone: str = "",
    priority: int | None = None,
    details: Details | None = None,
    by: str = "",
) -> Job:
    """Correct the location, the customer's phone, the priority or other details of an open job.

    Its technician is informed of a new location, phone or arrival window. A job that is being offered is
    dispatched again if its location or arrival window changes; a paused one can't be moved. A job that becomes an
    emergency while it is being offered is offered to as many technicians at once as its policy says.
    `customer_phone`: E.164; empty keeps the current one, as None does for `priority`. A new phone gets the
    customer's link by text, and links for the former phone end. `by` is "customer" if the customer did it, which
    notifies the dispatchers; a job that they move more often than CUSTOMER_MOVE_RATE becomes `pending`, and a
    dispatcher decides.

    Call it outside any transaction, because it may call a geocoder. Raises, besides the module's exceptions,
    AddressNotFound if the new location can't be found, and ValidationError {address} if nothing would change, and
    {arrival_window} if the new window can't be promised.
    """
    before = Job.objects.select_related("organization").get(pk=job_id)
    where = None
    if is_moved := bool(correction.address not in ("", before.address) or correction.lat is not None):
        where = geocoding.geocode(
            lat=correction.lat,
            lng=correction.lng,
            address=correction.address or before.address,
            organization=before.organization,
        )
        if where is None:
            raise AddressNotFound
    if is_moved or details is not None:
        travel.load_before_action(job_id, where)
    with locked_for_action(job_id, Action.CORRECT, version) as job:
        if is_moved and job.paused_at is not None:
            raise_illegal_transition(job, _("This job is paused, so it can't be moved. Resume it first."))
        changed = []
        if is_moved and where is not None:
            job.address = correction.address or job.address
            job.address_key = address_key(job.address)
            job.lat, job.lng, job.position_source = where.lat, where.lng, where.source
            changed.append(ADDRESS)
        if customer_phone and customer_phone != str(job.customer_phone):
            Job.objects.filter(pk=job.pk).update(customer_phone=customer_phone)
            job.customer_phone = customer_phone
            changed.append(PHONE)
        changed += _apply_details(job, details) if details is not None else []
        facts: dict[str, Any] = {}
        if "arrival window" in changed:
            facts = {"window_words": job.window_words}
        if priority is not None and priority != job.priority:
            Job.objects.filter(pk=job.pk).update(priority=priority)
            job.priority = priority
            changed.append(PRIORITY)
            facts |= _describe_priority(job)
        if not changed:
            nothing = _("Change the address or the phone number.") if by else _("Change at least one field.")
            raise ValidationError({"address": nothing})
        if "priority" in changed and not is_moved:
            slots.call_more(job)
        transitions.save_job(job)
        transitions.append_job_event(job, "job.corrected", actor=actor, changed=changed, note=note, by=by, **facts)
        is_rescheduled = "arrival window" in changed
        if (is_moved or is_rescheduled) and job.status == Job.Status.DISPATCHING and job.paused_at is None:
            what = ADDRESS_CORRECTED if is_moved else WINDOW_CHANGED
            slots.withdraw_offers(job, Outcome.PAUSED, what, actor)
            if by == BY_CUSTOMER and _was_moved_too_often(job):
                ranking.replace_candidates(job)
                transitions.mark_pending(job, Job.PendingReason.MOVED_OFTEN)
            else:
                begin_dispatch_again(job)
        if is_rescheduled and job.status == Job.Status.ASSIGNED and job.started_at is None:
            transitions.expect_start(job)
            transitions.save_job(job)
        is_news = not _IS_QUIET.issuperset(changed)
        job.refresh_from_db(fields=["customer_phone"])
        if is_news and job.status == Job.Status.ASSIGNED and job.technician_id is not None:
            was_deferred = notices.is_assignment_deferred(job)
            notices.inform(job, job.technician_id, News.CHANGED)
            if was_deferred and "phone" not in changed and not notices.is_assignment_deferred(job):
                customer_texts.inform_of_technician(job)
        if "priority" in changed:
            notices.check_deferred(job)
        if "phone" in changed:
            customer_texts.inform_new_phone(job)
    return job


def _apply_details(job: Job, details: Details) -> list[str]:
    """Set the details on the locked job, and save those that changed. Return their names."""
    before = job.arrival_window
    window = before if isinstance(details.window, Keep) else details.window
    names = ("customer_name", "notes", "expected_minutes")
    given: dict[str, Any] = {name: getattr(details, name) for name in names}
    values = {name: value for name, value in given.items() if value is not KEEP and value != getattr(job, name)}
    if values.get("customer_name") == "":
        raise ValidationError({"customer_name": _("Enter the customer's name.")})
    if window != before:
        if window is not None and (problem := window.problem(clock.now())):
            raise ValidationError({"arrival_window": _(problem)})
        values |= {"window_start": window and window.start, "window_end": window and window.end}
        job.calls_at_any_hour = False
    if values:
        Job.objects.filter(pk=job.pk).update(**values)
    for name, value in values.items():
        setattr(job, name, value)
    return [words for name, words in _DETAILS.items() if name in values]


def _was_moved_too_often(job: Job) -> bool:
    """Return whether the customer has changed the address more often than CUSTOMER_MOVE_RATE allows.

    Nobody is called while the job is held back, so the address may change then.
    """
    rate = parse_rate(settings.CUSTOMER_MOVE_RATE)
    moves = Event.objects.filter(
        subject_type="job",
        subject_id=job.pk,
        kind="job.corrected",
        at__gt=clock.now() - timedelta(seconds=rate.period_s),
        data__by=BY_CUSTOMER,
        data__changed__contains=["address"],
    )
    quiet = policies.quiet_hours(job.organization_id, job.service_type_id)
    return moves.count() > rate.limit and ranking.hold_of(job, quiet) is None


def _describe_priority(job: Job) -> dict[str, Any]:
    """Return the job's new priority in words, and how many technicians are called at once, for the Event."""
    facts = {"priority": str(Priority(job.priority).label).lower()}
    at_once = slots.offers_wanted(job) if job.status == Job.Status.DISPATCHING and not job.paused_at else 1
    return facts | ({"at_once": at_once} if at_once > 1 else {})
