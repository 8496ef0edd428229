"""Say why technicians are or are not eligible, why offers, texts and calls ended, and why a job was not changed.

Reasons are stored in English, with the ranking, the offer or the event.
"""

from __future__ import annotations

import re

from django.core.exceptions import ValidationError
from django.db import OperationalError

from dispatch.core import languages
from dispatch.core.api.problems import Conflict
from dispatch.core.db.errors import is_conflict
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.stored_texts import mark_stored, translate_stored
from dispatch.jobs.models import Job

# What an action on one of several jobs raises if that job is refused, deleted or locked.
REFUSALS = (Conflict, ValidationError, Job.DoesNotExist, OperationalError)

_PATTERNS = tuple(
    (re.compile(pattern), sentence)
    for pattern, sentence in (
        (r"qualified", mark("qualified")),
        (r"has another offer", mark("has another offer")),
        (r"(?P<distance>.+) outside the radius", mark("{distance} outside the radius")),
        (r"(?P<distance>.+) outside own radius", mark("{distance} outside own radius")),
        (r"off duty", mark("off duty")),
        (r"paused after (?P<count>\d+) missed calls", mark("paused after {count} missed calls")),
        (r"off shift", mark("off shift")),
        (r"off shift until (?P<day>[A-Z]\w\w) (?P<time>.+)", mark("off shift until {day} {time}")),
        (r"off shift until (?P<time>.+)", mark("off shift until {time}")),
        (r"(?P<open>\d+) of (?P<most>\d+) open jobs?", mark("{open} of {most} open jobs")),
        (
            r"(?P<open>\d+) of (?P<most>\d+) open jobs? at that time",
            mark("{open} of {most} open jobs at that time"),
        ),
        (r"no longer active", mark("no longer active")),
        (r"(?P<time>.+) by road", mark("{time} by road")),
        (r"can't be texted or called", mark("can't be texted or called")),
        (r"declined this job", mark("declined this job")),
        (r"said they can't make it", mark("said they can't make it")),
        (r"more than (?P<distance>.+) away", mark("more than {distance} away")),
    )
)
_SKILLS = "missing skill: "
# Reasons of offers, texts and calls, and parts of a candidate's reason, as the services store them.
STORED = (
    mark_stored("busy"),
    mark_stored("no answer"),
    mark_stored("hung up without pressing a key"),
    mark_stored("the call failed"),
    mark_stored("the call failed (error {code})"),
    mark_stored("the call was canceled"),
    mark_stored("the phone provider refused the call"),
    mark_stored("the phone provider refused the call (error {code})"),
    mark_stored("the call was never placed"),
    mark_stored("the phone provider never reported the end of the call"),
    mark_stored("voicemail or fax answered"),
    mark_stored("the number can't be called (error {code})"),
    mark_stored("the phone provider refused our account: {fault}"),
    mark_stored("answered, but the phone provider could not reach Dispatch"),
    mark_stored("the phone provider did not respond or report a call"),
    mark_stored("the phone provider reported nothing about the call"),
    mark_stored("no answer in time"),
    mark_stored("no reason given"),
    mark_stored("declined on the offer page"),
    mark_stored("called back and pressed 2"),
    mark_stored("accepted in an earlier call"),
    mark_stored("the job was accepted by another technician"),
    mark_stored("they accepted the job"),
    mark_stored("another change to this technician was in progress"),
    mark_stored("their record is locked by another session"),  # in rows of earlier versions
    mark_stored("their phone is on another call"),
    mark_stored("their phone number has changed"),
    mark_stored("The technician was deactivated."),
    mark_stored("the technician was deactivated"),
    mark_stored("the organization was deactivated"),
    mark_stored("the job has changed again"),
    mark_stored("the technician has reported on the job"),
    mark_stored("the text was delivered"),
    mark_stored("a dispatcher told the technician"),
    mark_stored("no pool for calls"),
    mark_stored("opted out of texts"),
    mark_stored("no number may send texts"),
    mark_stored("country not allowed"),
    mark_stored("country not allowed: {country}"),
    mark_stored("not a phone number"),
    mark_stored("the phone had too many texts within a day"),
    mark_stored("the phone was corrected too often"),
    mark_stored("an internal error ({fault})"),
    mark_stored("the phone can't receive texts (error {code})"),
    mark_stored("the customer's preferred technician"),
    mark_stored("within the {radius} of round {number}"),
    mark_stored("preferred skill: {skills}"),
    mark_stored("preferred skills: {skills}"),
    mark_stored("the job is {status}"),
)


def translate_reason(reason: str) -> str:
    """Return the reason in the active language. A part without a translation stays in English."""
    if languages.is_english() or not reason:
        return reason
    if reason.startswith(_SKILLS):
        return _("missing skill: {skills}").format(skills=reason.removeprefix(_SKILLS))
    if (whole := translate_stored(reason)) != reason:
        return whole
    return ", ".join(_translate_part(part) for part in reason.split(", "))


def _translate_part(part: str) -> str:
    for pattern, sentence in _PATTERNS:
        if match := pattern.fullmatch(part):
            values = match.groupdict()
            if "day" in values:
                values["day"] = _(values["day"]).lower()
            return _(sentence).format(**values)
    return translate_stored(part)


def explain_refusal(error: Exception) -> str:
    """Return why a job was not changed (`REFUSALS`). Raise the error again if the database has another problem."""
    if isinstance(error, Conflict):
        return str(error.detail)
    if isinstance(error, ValidationError):
        return " ".join(error.messages)
    if isinstance(error, Job.DoesNotExist):
        return _("This job no longer exists.")
    if not is_conflict(error):
        raise error
    return _("Someone else is changing this job. Try again in a moment.")
