"""Actions of people on a job. Each is one transaction: lock the job, check version and legality, act.

`version` is the version of the job that the actor saw; None skips the check. Every action raises Job.DoesNotExist,
Conflict ("At …, Maria assigned the job to Unit 12.") and IllegalTransition (with the same kind of message).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn
from zoneinfo import ZoneInfo

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.stored_texts import mark_stored
from dispatch.jobs import geocoding, policies, rules, timeline
from dispatch.jobs.models import CustomerTextKind, Job, Offer, TechnicianNotice
from dispatch.jobs.reasons import translate_reason
from dispatch.jobs.rules import ALREADY, IMPOSSIBLE, Action, Outcome, status_after
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.jobs.rules.duplicates import address_key
from dispatch.jobs.rules.phrases import join_names
from dispatch.jobs.services import customer_texts, notices, ranking, slots, transitions, travel, windows
from dispatch.jobs.services.answers import apply_recorded_answers, apply_recorded_key
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony import services as telephony

MAX_EXTENSION_S = 3600
# Why offers were withdrawn, stored with them.
REASSIGNED_BY_HAND = mark_stored("manually assigned to {name}")
REASSIGNED = mark_stored("reassigned to {name}")
CALLED_NEXT = mark_stored("{name} called the next technician")
PAUSED_BY = mark_stored("paused by {name}")
JOB_CANCELED = mark_stored("the job was canceled")
CANNOT_MAKE_IT = mark_stored("cannot make it")
THEY_CANNOT_MAKE_IT = mark_stored("they can't make it")
News = TechnicianNotice.News


@dataclass(frozen=True)
class AssignResult:
    """The result of `assign`. `assigned` is False, and nothing has changed, if the warnings were not confirmed."""

    job: Job
    warnings: tuple[str, ...]
    assigned: bool


@contextmanager
def locked_for_action(job_id: int, action: Action, version: int | None) -> Iterator[Job]:
    """Open a transaction in which the job is locked and `action` is legal.

    Recorded keys of the job's offers are applied first.
    """
    apply_recorded_keys(job_id)
    with transaction.atomic():
        job = transitions.lock_job(job_id)
        check_version(job, version)
        check_legal(job, action)
        yield job


def apply_recorded_keys(job_id: int) -> None:
    """Apply answers that are recorded for the job's offers and were not applied, such as after a crash."""
    offers = Offer.objects.filter(job=job_id)
    apply_recorded_answers(offers)
    pending = offers.filter(status=Offer.Status.PENDING).order_by("slot")
    for offer_id in pending.values_list("pk", flat=True):
        if telephony.keys_of("offer", offer_id):
            _apply_key_of_live_offer(job_id, offer_id)


@transaction.atomic
def _apply_key_of_live_offer(job_id: int, offer_id: int) -> None:
    job = transitions.lock_job(job_id)
    if (offer := transitions.lock_live_offer(job, offer_id)) is not None:
        apply_recorded_key(job, offer)


def assign(
    job_id: int,
    technician_id: int,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
    confirm_unfit: bool = False,
    window: ArrivalWindow | None = None,
) -> AssignResult:
    """Assign the job to a technician of its organization, for a new arrival window if one is given.

    Withdraws the live offers and hangs up their calls. An ineligible technician requires `confirm_unfit`.
    Raises ValidationError {technician} if the technician does not exist, is inactive, or already has the job, and
    {arrival_window} if the window can't be promised.
    """
    with locked_for_action(job_id, Action.ASSIGN, version) as job:
        live = transitions.live_offers(job)
        technician = Technician.objects.of(job.organization_id).filter(pk=technician_id, is_active=True).first()
        if technician is None:
            raise ValidationError({"technician": _("Unknown or inactive technician.")})
        if job.status == Job.Status.ASSIGNED and job.technician_id == technician_id:
            raise ValidationError({"technician": _("{name} already has this job.").format(name=technician.name)})
        freed = (*(offer.technician_id for offer in live), job.technician_id)
        technicians.lock_technicians([technician.pk, *filter(None, freed)])
        if not Technician.objects.filter(pk=technician.pk, is_active=True).exists():  # deactivated meanwhile
            raise ValidationError({"technician": _("Unknown or inactive technician.")})
        warnings = tuple(_warnings(job, technician, live, window))
        if warnings and not confirm_unfit:
            return AssignResult(job, warnings, assigned=False)
        reason = REASSIGNED_BY_HAND.format(name=technician.name)
        slots.withdraw_offers(job, Outcome.ASSIGNED_BY_HAND, reason, actor)
        _release_technician(
            job, Outcome.ASSIGNED_BY_HAND, REASSIGNED.format(name=technician.name), actor, News.REASSIGNED
        )
        windows.set_window(job, window, actor)
        transitions.assign_to(job, technician.pk, actor=actor, technician=technician.name, by="hand", note=note)
    return AssignResult(job, warnings, assigned=True)


def call_next_now(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Withdraw the live offers, hang up, and offer the job to the next technicians immediately.

    A job that waits for the end of quiet hours or for its arrival window calls from now on.
    """
    travel.load_before_action(job_id, is_held=True)
    with locked_for_action(job_id, Action.CALL_NEXT, version) as job:
        slots.withdraw_offers(job, Outcome.SKIPPED, CALLED_NEXT.format(name=actor.label), actor)
        slots.release_holds(job)
        is_quiet = job.waiting_for == transitions.Waiting.QUIET_HOURS
        if job.waiting_for in ranking.HELD:
            job.calls_at_any_hour = True
            ranking.begin_dispatch(job)
        if job.status == Job.Status.DISPATCHING:
            job.line_wait_until = None
            transitions.advance_job(job)
            transitions.save_job(job)
        transitions.append_job_event(job, "job.called_next", actor=actor, note=note, quiet_hours=is_quiet or None)
    return job


def extend(job_id: int, seconds: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Extend the deadline of the live offers whose phones ring.

    Requires a ringing phone, because the deadline starts then. Raises ValidationError {seconds} outside 1…3600.
    """
    if not 1 <= seconds <= MAX_EXTENSION_S:
        raise ValidationError({"seconds": _("Must be between 1 and {most} seconds.").format(most=MAX_EXTENSION_S)})
    with locked_for_action(job_id, Action.EXTEND, version) as job:
        live = transitions.live_offers(job)
        if not live:
            raise_illegal_transition(job, _("This job has no live offer, so there is nothing to extend."))
        ringing = [offer for offer in live if offer.ringing_since is not None]
        if not ringing:
            raise_illegal_transition(job, _("The phone is not ringing yet, so there is nothing to extend."))
        for offer in ringing:
            offer.expires_at += timedelta(seconds=seconds)
            offer.save(update_fields=["expires_at"])
        slots.await_answer(job, ringing[0])
        transitions.save_job(job)
        for offer in ringing:
            transitions.set_timer(job, offer.expires_at)
        names = join_names(offer.technician.name for offer in ringing)
        transitions.append_job_event(
            job, "job.extended", actor=actor, seconds=seconds, technician=names, note=note
        )
    return job


def pause(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Stop the cascade, withdraw the live offers and hang up. Their technicians get offers again afterwards."""
    with locked_for_action(job_id, Action.PAUSE, version) as job:
        slots.withdraw_offers(job, Outcome.PAUSED, PAUSED_BY.format(name=actor.label), actor)
        transitions.stop_waiting(job, transitions.Waiting.PERSON)
        job.paused_at = clock.now()
        if reminder_s := policies.frozen_policy(job).pause_reminder_s:
            job.attention_at = transitions.seconds_from_now(reminder_s)
        transitions.save_job(job)
        transitions.append_job_event(job, "job.paused", actor=actor, note=note)
    return job


def resume(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Resume the cascade where the pause stopped it.

    A job that was held back when it was paused is ranked afresh, or held back again.
    """
    travel.load_before_action(job_id)
    with locked_for_action(job_id, Action.RESUME, version) as job:
        job.paused_at = job.attention_at = job.reminded_at = None
        transitions.append_job_event(job, "job.resumed", actor=actor, note=note)
        if ranking.was_held(job):
            ranking.begin_dispatch(job)
        slots.release_holds(job)
        if job.status == Job.Status.DISPATCHING and job.waiting_for not in ranking.HELD:
            transitions.advance_job(job)
            transitions.save_job(job)
    return job


def cancel(job_id: int, reason: str, *, actor: Actor, version: int | None = None, by: str = "") -> Job:
    """End the job without a result. Raises ValidationError {reason} if the reason is empty.

    `by` is "customer" if the customer did it, which notifies the dispatchers.
    """
    if not reason.strip():
        raise ValidationError({"reason": _("Enter a reason.")})
    with locked_for_action(job_id, Action.CANCEL, version) as job:
        slots.withdraw_offers(job, Outcome.CANCELLED, JOB_CANCELED, actor)
        _release_technician(job, Outcome.CANCELLED, JOB_CANCELED, actor, News.CANCELLED)
        job.status, job.pending_reason, job.ended_at = Job.Status.CANCELLED, "", clock.now()
        transitions.stop_waiting(job, transitions.Waiting.NOTHING)
        transitions.save_job(job)
        transitions.append_job_event(job, "job.cancelled", actor=actor, reason=reason.strip()[:500], by=by)
        customer_texts.withdraw(job, *customer_texts.Kind)
        if job.duplicate_state != Job.DuplicateState.MERGED:  # the other request goes on
            customer_texts.inform_customer(job, CustomerTextKind.CANCELLED)
    return job


def complete(job_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Job:
    """Mark the job completed and decrement its technician's open jobs."""
    with locked_for_action(job_id, Action.COMPLETE, version) as job:
        assert job.technician_id is not None
        technicians.remove_open_job(job.technician_id)
        job.status, job.ended_at = Job.Status.COMPLETED, clock.now()
        transitions.stop_waiting(job, transitions.Waiting.NOTHING)
        transitions.save_job(job)
        transitions.append_job_event(job, "job.completed", actor=actor, technician_id=job.technician_id, note=note)
        customer_texts.withdraw(job, CustomerTextKind.RECEIVED, *customer_texts.ABOUT_COMING)
        customer_texts.inform_customer(job, CustomerTextKind.COMPLETED)
        notices.end_known(job, actor)
    return job


def cannot_make_it(
    job_id: int, *, actor: Actor, version: int | None = None, note: str = "", technician_id: int | None = None
) -> Job:
    """Release the job from its technician, and dispatch it again with the current policy and a new ranking.

    The technician, and those who declined, get no further offer of it. `technician_id`: only if they have it.
    """
    travel.load_before_action(job_id)
    with locked_for_action(job_id, Action.CANNOT_MAKE_IT, version) as job:
        assert job.technician is not None
        gone = job.technician
        if technician_id not in (None, gone.pk):
            raise_illegal_transition(job, _("Another technician has this job now."))
        transitions.append_job_event(
            job, "job.cannot_make_it", actor=actor, technician_id=gone.pk, technician=gone.name, note=note
        )
        if gone.pk not in job.not_again:
            job.not_again = [*job.not_again, gone.pk]
        _release_technician(job, Outcome.CANNOT_MAKE_IT, CANNOT_MAKE_IT, actor, None)
        job.assigned_at = None
        begin_dispatch_again(job)
    return job


def begin_dispatch_again(job: Job) -> None:
    """Dispatch the locked job from the beginning, or when quiet hours or its arrival window allow it.

    Offers made so far count only if they were declined. After MAX_ROUNDS the job turns `pending` instead.
    """
    job.status, job.pending_reason = Job.Status.DISPATCHING, ""
    job.attention_at = job.reminded_at = None
    job.on_the_way_at = job.eta_at = job.started_at = None
    job.late_minutes = job.late_reported_at = None
    if job.round >= rules.MAX_ROUNDS:
        ranking.replace_candidates(job)
        transitions.mark_pending(job, Job.PendingReason.EXHAUSTED, offers=job.offers.count())
        return
    job.first_round = job.round = job.round + 1
    ranking.begin_dispatch(job)
    if job.status == Job.Status.DISPATCHING and job.waiting_for not in ranking.HELD:
        transitions.advance_job(job)
        transitions.save_job(job)


def _release_technician(job: Job, outcome: Outcome, reason: str, actor: Actor, news: News | None) -> None:
    """Release an assigned job from its technician and rescind the accepted offer.

    The technician is informed of `news` (None: they know).
    """
    if job.technician_id is None or job.status != Job.Status.ASSIGNED:
        return
    technicians.remove_open_job(job.technician_id)  # locks them before the browsers that the news goes to
    telephony.cancel_texts(Q(purpose="job", subject_id=job.pk), actor=actor)
    customer_texts.withdraw(job, *customer_texts.ABOUT_COMING)
    if news is None:
        notices.supersede(job, job.technician_id, because=THEY_CANNOT_MAKE_IT)
    else:
        notices.inform(job, job.technician_id, news)
    accepted = job.offers.select_for_update(no_key=True).filter(status=Offer.Status.ACCEPTED).first()
    if accepted is not None:
        accepted.status, accepted.outcome, accepted.reason = Offer.Status.RESCINDED, outcome, reason[:160]
        accepted.save(update_fields=["status", "outcome", "reason"])
        transitions.append_offer_event(
            accepted, "offer.rescinded", actor=actor, outcome=str(outcome), reason=reason
        )
    job.technician = None


def _warnings(
    job: Job, technician: Technician, live: list[Offer], window: ArrivalWindow | None = None
) -> Iterator[str]:
    """Yield the reasons against assigning this technician, for a new arrival window if one is given."""
    if notices.unreachable_phones(job, [str(technician.phone)]):
        yield _("{name} can be neither texted nor called. Notify them yourself.").format(name=technician.name)
    if technician.pk in job.not_again:
        yield _("{name} said they can't make it.").format(name=technician.name)
    elif transitions.has_declined(job, technician.pk):
        yield _("{name} declined this job.").format(name=technician.name)
    if job.lat is None or job.lng is None:
        if not technician.on_duty:
            yield _("{name} is off duty.").format(name=technician.name)
        return
    skills = job.service_type.required_skills.values_list("pk", flat=True)
    fitness = technicians.check_fitness(
        technician.pk,
        job.lat,
        job.lng,
        radius_m=policies.search_radius(job),
        skill_ids=skills,
        during=policies.time_of(job, job.service_type.expected_minutes, window),
    )
    if fitness.verdict != "in" and all(offer.technician_id != technician.pk for offer in live):
        yield f"{technician.name}: {translate_reason(fitness.reason)}."


@dataclass(frozen=True)
class Correction:
    """A corrected location of the job. Empty or None keeps the current value."""

    address: str = ""
    lat: float | None = None
    lng: float | None = None


class AddressNotFound(ValidationError):
    """Raised as a ValidationError {address} if a location can't be found."""

    def __init__(self) -> None:
        super().__init__({"address": _("Address not found. Enter a ZIP code or coordinates.")})


def dispatch_again(
    job_id: int, *, actor: Actor, version: int | None = None, note: str = "", correction: Correction | None = None
) -> Job:
    """Dispatch a pending or canceled job again with the current policy and a new ranking.

    Technicians who declined or can't make it get no offer; other earlier answers don't count. A job without a
    position, or with a correction, is geocoded again. The returned job is `pending` again if nobody is near.

    Call it outside any transaction, because it may call a geocoder. Besides the module's exceptions, it raises
    AddressNotFound if the location still can't be found.
    """
    before = Job.objects.select_related("organization").get(pk=job_id)
    moved = correction is not None and bool(correction.address or correction.lat is not None)
    location = (
        correction if correction is not None and moved else Correction(before.address, before.lat, before.lng)
    )
    address = location.address or before.address
    where = None
    if moved or before.lat is None:
        where = geocoding.geocode(
            lat=location.lat, lng=location.lng, address=address, organization=before.organization
        )
    travel.load_before_action(job_id, where)
    with locked_for_action(job_id, Action.DISPATCH_AGAIN, version) as job:
        if where is not None:
            job.address, job.lat, job.lng, job.position_source = address, where.lat, where.lng, where.source
            job.address_key = address_key(address)
        elif moved or job.lat is None:
            raise AddressNotFound
        customer_texts.withdraw(job, CustomerTextKind.CANCELLED)
        if job.duplicate_state == Job.DuplicateState.MERGED:  # a person decided that it goes on
            job.duplicate_state = Job.DuplicateState.DISMISSED
        job.technician, job.assigned_at, job.ended_at = None, None, None
        job.calls_at_any_hour = ranking.freeze_and_check_hold(job)  # a person decided to call now
        transitions.append_job_event(job, "job.dispatch_again", actor=actor, note=note)
        begin_dispatch_again(job)
    return job


class IllegalTransition(Conflict):
    """Raised (409) if the job's status does not allow an action. The message includes the last change."""

    default_code = "illegal_transition"


def check_version(job: Job, version: int | None) -> None:
    """Raise Conflict unless `version` is the job's current version. None skips the check."""
    if version is not None and version != job.version:
        raise _build_refusal(Conflict, job, _("This job has changed."), job)


def check_legal(job: Job, action: Action) -> None:
    """Raise IllegalTransition unless `action` is legal now."""
    if words := ALREADY.get((job.status, action)):
        raise_illegal_transition(job, _(words))
    if status_after(job.status, action) is None:
        raise_illegal_transition(
            job,
            _("This job is {status}, so {consequence}.").format(
                status=_(job.get_status_display().lower()), consequence=_(IMPOSSIBLE[action])
            ),
        )
    if action is Action.RESUME and job.paused_at is None:
        raise_illegal_transition(job, _("This job is not paused, so it can't be resumed."))
    if action in (Action.PAUSE, Action.CALL_NEXT, Action.EXTEND) and job.paused_at is not None:
        raise_illegal_transition(
            job,
            _("This job is paused, so {consequence}. Resume it first.").format(consequence=_(IMPOSSIBLE[action])),
        )
    if action in (Action.ON_THE_WAY, Action.REPORT_LATE, Action.MARK_STARTED) and job.started_at is not None:
        raise_illegal_transition(job, _("This job has already been started."))


def raise_illegal_transition(job: Job, why: str, *, cause: Job | None = None) -> NoReturn:
    """Raise IllegalTransition with the reason and the last change of the job, or of `cause`, another job."""
    raise _build_refusal(IllegalTransition, job, why, cause or job)


def _build_refusal(refusal: type[Conflict], job: Job, why: str, changed: Job) -> Conflict:
    """Return the refusal with the last change of the job `changed`: who did what, when."""
    details: dict[str, Any] = {"version": job.version, "job_status": str(job.status)}
    if (last := timeline.last_change(changed)) is not None:
        at = last.at.astimezone(ZoneInfo(job.organization.time_zone))
        # `did` comes last: it may end with a reason, as people wrote it.
        why = _("{why} At {time} on {date}, {who} {did}.").format(
            why=why,
            time=f"{at:%H:%M:%S %Z}",
            date=f"{at:%Y-%m-%d}",
            who=last.actor_label,
            did=last.did.removesuffix("."),
        )
        details |= {"by": Actor(last.actor_type, last.actor_id, last.actor_label), "did": last.did, "at": last.at}
    return refusal(why, **details)
