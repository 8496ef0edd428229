"""Twilio's words in ours: statuses and error codes, as tables."""

from __future__ import annotations

import re
from typing import Any

from dispatch.telephony.providers.base import Outcome, RateLimited, Rejected, Unknown

STATUS = {
    "queued": "submitted",
    "initiated": "submitted",
    "ringing": "ringing",
    "in-progress": "answered",
    "completed": "completed",
    "busy": "busy",
    "no-answer": "no_answer",
    "failed": "failed",
    "canceled": "canceled",
}

TEXT_STATUS = {
    "accepted": "submitted",
    "scheduled": "submitted",
    "queued": "submitted",
    "sending": "submitted",
    "sent": "sent",
    "delivered": "delivered",
    "read": "delivered",
    "undelivered": "undelivered",
    "failed": "failed",
    "canceled": "canceled",
}
# What stands for a caller who shows no number.
WITHHELD = {"", "anonymous", "Anonymous", "restricted", "unavailable", "+266696687", "+7378742883", "+86282452253"}

# Error codes by what they are about.
NUMBER = {21211, 21214, 21217, 21614, 13224}
PERMISSION = {21215, 21216, 21219, 21408}
CONFIGURATION = {20003, 21210, 21212, 21218, 21606, 21612}
OPTED_OUT = {21610}
LATER = {20429, 10004}
NOT_IN_PROGRESS = 21220
NOT_UNDERSTOOD_STATUS = 408  # "request timeout": a proxy's word, and no promise that nothing happened

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")

RETRY_AFTER_S = 1.0
MOST_RETRY_AFTER_S = 300.0


def kind_of(code: int) -> str:
    """What an error code is about: number, permission, configuration, opted_out or other."""
    for kind, codes in (
        ("number", NUMBER),
        ("permission", PERMISSION),
        ("configuration", CONFIGURATION),
        ("opted_out", OPTED_OUT),
    ):
        if code in codes:
            return kind
    return "other"


def outcome_of_error(error: Any, retry_after_s: float | None) -> Outcome:
    """What an error answer to a create request means. A 5xx may have made a call all the same (20503 too)."""
    status, code = getattr(error, "status", 0) or 0, getattr(error, "code", 0) or 0
    if status == 429 or code in LATER:
        wait = RETRY_AFTER_S if retry_after_s is None else min(max(retry_after_s, 0.1), MOST_RETRY_AFTER_S)
        return RateLimited(wait, f"{code}")
    if 400 <= status < 500 and status != NOT_UNDERSTOOD_STATUS:
        kind = kind_of(code)
        message = str(getattr(error, "msg", "") or getattr(error, "title", ""))
        return Rejected(kind in ("number", "opted_out"), str(code), message[:255], kind)
    return Unknown(f"error {status or type(error).__name__} {code or ''}".strip())


def sayable(text: str) -> str:
    """`text` without what no XML document may hold (a customer's notes may)."""
    return _NOT_IN_XML.sub(" ", text).strip()


def whole(text: Any) -> int | None:
    """A number of seconds or a sequence number; None for what is none."""
    value = str(text) if text is not None else ""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else None
