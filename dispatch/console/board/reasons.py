"""Translate why technicians are or are not eligible. Reasons are stored in English with the ranking."""

from __future__ import annotations

import re

from dispatch.core import languages
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark

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
        (r"no longer active", mark("no longer active")),
        (r"(?P<time>.+) by road", mark("{time} by road")),
        (r"can't be texted or called", mark("can't be texted or called")),
        (r"declined this job", mark("declined this job")),
        (r"said they can't make it", mark("said they can't make it")),
        (r"more than (?P<distance>.+) away", mark("more than {distance} away")),
    )
)
_SKILLS = "missing skill: "


def translate_reason(reason: str) -> str:
    """Return the reason in the active language. A part without a translation stays in English."""
    if languages.is_english() or not reason:
        return reason
    if reason.startswith(_SKILLS):
        return _("missing skill: {skills}").format(skills=reason.removeprefix(_SKILLS))
    return ", ".join(_translate_part(part) for part in reason.split(", "))


def _translate_part(part: str) -> str:
    for pattern, sentence in _PATTERNS:
        if match := pattern.fullmatch(part):
            values = match.groupdict()
            if "day" in values:
                values["day"] = _(values["day"]).lower()
            return _(sentence).format(**values)
    return part
