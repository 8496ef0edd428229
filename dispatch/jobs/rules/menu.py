"""Define the voice menu for technicians who call: its pages, keys and prompts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext, translated
from dispatch.jobs.rules.customer_phrases import first_name
from dispatch.jobs.rules.phrases import ENTER_PIN, PIN_LOCKED, PromptContext, job_sentences

DONE_KEY, LATE_KEY, GIVE_BACK_KEY, START_KEY, NEXT_KEY = "1", "2", "3", "4", "5"
REPEAT_KEYS = "9*"
# On the page that asks whether the technician really can't make it.
CONFIRM_KEY, KEEP_KEY = "1", "2"
DIGITS = "0123456789"
MINUTE_DIGITS = 3
# Entered instead of minutes: back to the job.
BACK = 0


class Page(StrEnum):
    """A page of the menu: what the next key means."""

    JOB = "job"  # a job and its actions
    LATE = "late"  # asks for the minutes of a delay
    GIVE_BACK = "back"  # asks for a confirmation
    RESULT = "result"  # the result of an action
    PIN = "pin"


@dataclass(frozen=True)
class MenuState:
    """The page that was spoken, and the job with the version that it described.

    It travels in the address of the next key. A repeated key therefore means the same action on the same version.
    """

    page: Page
    job_id: int = 0
    version: int = 0

    def __str__(self) -> str:
        return f"{self.page}-{self.job_id}-{self.version}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the state that `str` wrote, or None for any other text."""
        match = re.fullmatch(r"([a-z]{2,8})-([0-9]{1,18})-([0-9]{1,9})", text)
        if match is None or match[1] not in set(Page):
            return None
        return cls(Page(match[1]), int(match[2]), int(match[3]))


@dataclass(frozen=True)
class JobFacts:
    """A job on its page. `place` of `count`: its position among the technician's open jobs, from 1."""

    context: PromptContext
    place: int
    count: int
    is_started: bool

    @property
    def keys(self) -> str:
        """The keys of the page."""
        keys = DONE_KEY + GIVE_BACK_KEY + ("" if self.is_started else LATE_KEY + START_KEY)
        return keys + (NEXT_KEY if self.count > 1 else "") + REPEAT_KEYS


# English; translated where they are spoken.
GOODBYE = (mark("Goodbye."),)
NO_JOBS = mark("You have no open jobs and no job offer to answer.")
NO_MORE_JOBS = (mark("You have no more open jobs."), mark("Goodbye."))
UNKNOWN_KEY = mark("Sorry, that is not a valid key.")
JOB_CHANGED = mark("Sorry, this job has changed, so nothing was recorded.")
NO_LONGER_YOURS = mark("Sorry, this job is no longer yours, so nothing was recorded.")
DONE = mark("Thank you. The job is marked as done.")
STARTED = mark("Thank you. The job is marked as started.")
GIVEN_BACK = mark("You gave the job back. We will look for another technician.")
KEPT = mark("The job is still yours.")


def greeting(name: str, jobs: int) -> tuple[str, ...]:
    """Return the greeting of a technician with this number of open jobs."""
    count = ngettext("You have {count} open job.", "You have {count} open jobs.", jobs).format(count=jobs)
    return (hello(name), count)


def hello(name: str) -> str:
    """Return the sentence that greets a technician by name."""
    return _("Hello {name}.").format(name=first_name(name))


def no_jobs(name: str) -> tuple[str, ...]:
    """Return what a technician without open jobs and offers hears."""
    return (hello(name), _(NO_JOBS), *translated(GOODBYE))


def job_page(facts: JobFacts) -> tuple[str, ...]:
    """Return a job and the keys of its actions."""
    options = [
        _("{key} if it is done").format(key=DONE_KEY),
        "" if facts.is_started else _("{key} if you are running late").format(key=LATE_KEY),
        _("{key} if you can't make it").format(key=GIVE_BACK_KEY),
        "" if facts.is_started else _("{key} if you start now").format(key=START_KEY),
        _("{key} for the next job").format(key=NEXT_KEY) if facts.count > 1 else "",
    ]
    keys = ", ".join(filter(None, options))
    sentences = (
        _("Job {place} of {count}.").format(place=facts.place, count=facts.count) if facts.count > 1 else "",
        *job_sentences(facts.context),
        _("You have started this job.") if facts.is_started else "",
        _("Press {keys}, or {key} to repeat.").format(keys=keys, key=REPEAT_KEYS[0]),
    )
    return tuple(filter(None, sentences))


def ask_minutes(longest: int, *, is_wrong: bool = False) -> tuple[str, ...]:
    """Ask for the minutes of a delay. `is_wrong`: what was entered is not allowed."""
    sentences = (
        _("Enter a number from 1 to {longest}.").format(longest=longest) if is_wrong else "",
        _("By how many minutes are you late? Enter them, then press pound."),
        _("To go back, enter 0."),
    )
    return tuple(filter(None, sentences))


def confirm_give_back(service: str) -> tuple[str, ...]:
    """Ask whether the technician really gives the job back."""
    return (
        _("You can't make it: {service}.").format(service=service),
        _("We will look for another technician, and you won't be offered this job again."),
        _("Press {key} to give the job back, {other} to keep it.").format(key=CONFIRM_KEY, other=KEEP_KEY),
    )


def result_page(result: str, *, others: int, has_job: bool) -> tuple[str, ...]:
    """Return the result of an action and what the keys do next.

    `others`: the open jobs besides the one of the action. `has_job`: that one is still open.
    """
    more = ngettext("You have {count} other open job.", "You have {count} other open jobs.", others)
    count = more.format(count=others) if others else ""
    next_job, this_job = NEXT_KEY, REPEAT_KEYS[0]
    if others and has_job:
        keys = _("Press {key} for the next job, or {other} for this job, or hang up.")
    elif others:
        keys = _("Press {key} for the next job, or hang up.")
    else:
        keys, next_job = _("Press {key} for this job, or hang up."), this_job
    return tuple(filter(None, (result, count, keys.format(key=next_job, other=this_job))))


def result_keys(*, others: int, has_job: bool) -> str:
    """Return the keys of `result_page`. None of them is an action, so pressing a key twice does no harm."""
    return (NEXT_KEY if others else "") + (REPEAT_KEYS if has_job else "")


def ask_identity(opening: Sequence[str], *, has_pin: bool, is_locked: bool) -> tuple[str, ...]:
    """Return the prompt for a caller whose number may be forged: nothing about jobs or customers."""
    if is_locked:
        return (*opening, *translated(PIN_LOCKED))
    if has_pin:
        return (*opening, *translated(ENTER_PIN))
    return (
        *opening,
        _("We can't verify your number."),
        _("To hear your jobs when you call, set a PIN on your page."),
        *translated(GOODBYE),
    )
