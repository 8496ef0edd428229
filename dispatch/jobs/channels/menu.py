"""The voice menu for technicians who call: hear open jobs, and report done, late, started or can't make it.

Every prompt carries its state (`rules.menu.MenuState`): the page, the job and the version that was spoken. An
action takes effect only on that version, so a repeated or delayed key takes effect once, and a key for a job that
has changed since is refused. Only a trusted caller (attestation A, or the PIN) hears or changes a job. The prompts
are in the active language.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext, translated
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.rules import menu, phrases
from dispatch.jobs.rules.menu import MenuState, Page
from dispatch.jobs.rules.on_the_way import MAX_LATE_MINUTES
from dispatch.jobs.services.sms import prompt_context
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import MAX_PIN_LENGTH
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import InboundCall

MAX_JOBS = 50


def open_jobs(technician: Technician) -> list[Job]:
    """Return the technician's assigned jobs, in the order of their page."""
    jobs = Job.objects.of(technician.organization_id).filter(technician=technician, status=Job.Status.ASSIGNED)
    related = jobs.select_related("service_type", "organization")
    return list(related.order_by("priority", "assigned_at", "pk")[:MAX_JOBS])


def open_menu(call: InboundCall, technician: Technician, *opening: str) -> VoicePrompt | None:
    """Return the first prompt, or None for a technician without open jobs. `opening`: sentences before it."""
    jobs = open_jobs(technician)
    if not jobs:
        return None
    said = (*opening, *menu.greeting(technician.name, len(jobs)))
    if not call.is_trusted:
        return ask_identity(call, technician, said)
    return _job_page(jobs, jobs[0].pk, *said)


def ask_identity(call: InboundCall, technician: Technician, opening: tuple[str, ...]) -> VoicePrompt:
    """Ask for the PIN of a caller whose number may be forged. Without a PIN, the call ends."""
    has_pin, is_locked = bool(technician.pin_hash), technicians.is_pin_locked(technician, call.caller_kind)
    said = menu.ask_identity(opening, has_pin=has_pin, is_locked=is_locked)
    if not has_pin or is_locked:
        return VoicePrompt(said)
    return VoicePrompt(said, keys=menu.DIGITS, digits=MAX_PIN_LENGTH, state=str(MenuState(Page.PIN)))


def apply_key(call: InboundCall, technician: Technician, state: MenuState, key: str) -> VoicePrompt:
    """Apply a key of the page `state`, and return the next page. `key` is empty if the page did not offer it."""
    if not call.is_trusted:
        return ask_identity(call, technician, ())
    job = _spoken_job(technician, state)
    match state.page, key:
        case Page.JOB, menu.DONE_KEY:
            return _perform(call, technician, state, job, services.complete, _is_completed, gettext(menu.DONE))
        case Page.JOB, menu.START_KEY:
            started = gettext(menu.STARTED)
            return _perform(call, technician, state, job, services.mark_started, _is_started, started)
        case Page.GIVE_BACK, menu.CONFIRM_KEY:
            given_back = gettext(menu.GIVEN_BACK)
            return _perform(call, technician, state, job, services.cannot_make_it, _is_given_back, given_back)
        case Page.JOB, (menu.LATE_KEY | menu.GIVE_BACK_KEY) if job is None or not _is_theirs(job, technician):
            return _page_of(technician, state.job_id, gettext(menu.NO_LONGER_YOURS))
        case Page.JOB, menu.LATE_KEY:
            return _minutes_page(state)
        case Page.JOB, menu.GIVE_BACK_KEY if job is not None:
            return _confirmation_page(state, job)
        case ((Page.JOB | Page.RESULT), menu.NEXT_KEY):
            return _next_page(technician, state.job_id)
        case Page.LATE, _:
            return _minutes_page(state, is_wrong=True)
        case Page.GIVE_BACK, menu.KEEP_KEY:
            return _page_of(technician, state.job_id, gettext(menu.KEPT))
        case _, key if key and key in menu.REPEAT_KEYS:
            return _page_of(technician, state.job_id)
        case Page.RESULT, _:  # not the page of a job: the key may be one pressed twice in haste
            return _result_page(technician, state, gettext(menu.UNKNOWN_KEY))
    return _page_of(technician, state.job_id, gettext(menu.UNKNOWN_KEY))


def apply_minutes(call: InboundCall, technician: Technician, state: MenuState, digits: str) -> VoicePrompt:
    """Report the job late by the entered minutes."""
    if not call.is_trusted:
        return ask_identity(call, technician, ())
    minutes = int(digits)
    if minutes == menu.BACK:
        return _page_of(technician, state.job_id)
    if minutes > MAX_LATE_MINUTES:
        return _minutes_page(state, is_wrong=True)

    def report(job_id: int, *, actor: Actor, version: int) -> Job:
        return services.report_late(job_id, minutes, actor=actor, version=version, by="call_back")

    def is_reported(job: Job, technician: Technician, call: InboundCall) -> bool:
        at = job.late_reported_at
        is_same = job.late_minutes == minutes and at is not None and at >= call.created_at
        return _is_theirs(job, technician) and is_same

    job = _spoken_job(technician, state)
    return _perform(call, technician, state, job, report, is_reported, phrases.late_reply(minutes))


def _perform(
    call: InboundCall,
    technician: Technician,
    state: MenuState,
    job: Job | None,
    act: Callable[..., Job],
    was_done: Callable[[Job, Technician, InboundCall], bool],
    result: str,
) -> VoicePrompt:
    """Perform the action on the version that was spoken, and return its result.

    A repeated key finds that `was_done` and gets the same result. Otherwise the job has changed, and the action is
    refused.
    """
    if _is_theirs(job, technician):
        try:
            act(state.job_id, actor=_actor(technician), version=state.version)
        except Conflict:
            job = _spoken_job(technician, state)
        else:
            return _result_page(technician, state, result)
    if job is not None and was_done(job, technician, call):
        return _result_page(technician, state, result)
    if not _is_theirs(job, technician):
        return _page_of(technician, state.job_id, gettext(menu.NO_LONGER_YOURS))
    return _page_of(technician, state.job_id, gettext(menu.JOB_CHANGED))


def _spoken_job(technician: Technician, state: MenuState) -> Job | None:
    """Return the current row of the page's job, even if another technician has it."""
    jobs = Job.objects.of(technician.organization_id).select_related("service_type", "organization")
    job: Job | None = jobs.filter(pk=state.job_id).first()
    return job


def _is_theirs(job: Job | None, technician: Technician) -> bool:
    return job is not None and job.technician_id == technician.pk and job.status == Job.Status.ASSIGNED


def _is_completed(job: Job, technician: Technician, call: InboundCall) -> bool:
    is_over = job.status == Job.Status.COMPLETED and job.ended_at is not None and job.ended_at >= call.created_at
    return is_over and job.technician_id == technician.pk


def _is_started(job: Job, technician: Technician, call: InboundCall) -> bool:
    return _is_theirs(job, technician) and job.started_at is not None and job.started_at >= call.created_at


def _is_given_back(job: Job, technician: Technician, call: InboundCall) -> bool:
    return technician.pk in job.not_again and job.technician_id != technician.pk


def _minutes_page(state: MenuState, *, is_wrong: bool = False) -> VoicePrompt:
    said = menu.ask_minutes(MAX_LATE_MINUTES, is_wrong=is_wrong)
    return VoicePrompt(said, menu.DIGITS, digits=menu.MINUTE_DIGITS, state=str(replace(state, page=Page.LATE)))


def _confirmation_page(state: MenuState, job: Job) -> VoicePrompt:
    said = menu.confirm_give_back(prompt_context(job, is_spoken=True).service)
    state = replace(state, page=Page.GIVE_BACK)
    return VoicePrompt(said, keys=menu.CONFIRM_KEY + menu.KEEP_KEY, state=str(state))


def _result_page(technician: Technician, state: MenuState, result: str) -> VoicePrompt:
    jobs = open_jobs(technician)
    if not jobs:
        return VoicePrompt((result, *translated(menu.NO_MORE_JOBS)))
    has_job = any(job.pk == state.job_id for job in jobs)
    others = len(jobs) - has_job
    return VoicePrompt(
        menu.result_page(result, others=others, has_job=has_job),
        keys=menu.result_keys(others=others, has_job=has_job),
        state=str(replace(state, page=Page.RESULT)),
    )


def _next_page(technician: Technician, job_id: int) -> VoicePrompt:
    jobs = open_jobs(technician)
    ids = [job.pk for job in jobs]
    if not jobs:
        return VoicePrompt(translated(menu.NO_MORE_JOBS))
    return _job_page(jobs, ids[(ids.index(job_id) + 1) % len(ids)] if job_id in ids else ids[0])


def _page_of(technician: Technician, job_id: int, *opening: str) -> VoicePrompt:
    """Return the page of this job, or of the first one if it is no longer theirs."""
    jobs = open_jobs(technician)
    if not jobs:
        return VoicePrompt((*opening, *translated(menu.NO_MORE_JOBS)))
    return _job_page(jobs, job_id if any(job.pk == job_id for job in jobs) else jobs[0].pk, *opening)


def _job_page(jobs: list[Job], job_id: int, *opening: str) -> VoicePrompt:
    place, job = next((place, job) for place, job in enumerate(jobs, start=1) if job.pk == job_id)
    context = prompt_context(job, is_spoken=True)
    facts = menu.JobFacts(context, place, len(jobs), job.started_at is not None)
    state = MenuState(Page.JOB, job.pk, job.version)
    return VoicePrompt((*opening, *menu.job_page(facts)), keys=facts.keys, state=str(state))


def _actor(technician: Technician) -> Actor:
    return Actor("technician", technician.pk, technician.name)
