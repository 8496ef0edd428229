"""Map Twilio's statuses and error codes to ours."""

from __future__ import annotations

import re
from typing import Any

from dispatch.core.stored_texts import mark_stored
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
    "partially_delivered": "sent",
    "delivered": "delivered",
    "read": "delivered",
    "undelivered": "undelivered",
    "failed": "failed",
    "canceled": "canceled",
}
# Placeholders that stand for a withheld caller number.
WITHHELD = {
    "", "anonymous", "Anonymous", "restricted", "unavailable",
    # RESTRICTED, BLOCKED, UNKNOWN, ANONYMOUS (with and without a country code) and UNAVAILABLE on a keypad
    "+7378742833", "+2562533", "+8656696", "+2662696687", "+266696687", "+86282452253",
}  # fmt: skip

# Error codes by kind, from Twilio's published list: those that a call or a text can end with.
# This phone can't be called or texted: invalid, unreachable, premium, unknown, a landline, blocked for texts.
NUMBER = {13223, 13224, 13226, 21202, 21211, 21214, 21217, 21614, 30004, 30005, 30006}
# The account may not call or text this phone: country, block list, trial account, missing compliance profile.
PERMISSION = {13225, 13227, 14111, 21203, 21215, 21216, 21219, 21408, 21607, 21608}
# The caller number can't be used.
CALLER = {13214, 13247, 14108, 21210, 21212, 21407, 21606, 21612, 21616}
# The caller number is not registered for texts, or has used up the limit of its registration.
REGISTRATION = {30018, 30023, 30024, 30027, 30032, 30033, 30034, 30035}
# Token, id or state of the account; then the URLs that every request carries.
ACCOUNT = {
    10001, 10002, 20003, 20005, 20006, 20008, 20010, 20403, 20404, 21470, 21472, 30002, 30010, 70004, 70051,
    572002, 572005, 573002, 573005,
}  # fmt: skip
ADDRESSES = {21205, 21609}
CONFIGURATION = CALLER | REGISTRATION | ACCOUNT | ADDRESSES
# Carriers block the caller number, or the text.
FILTERED = {30007, 32017}
# Of this text only: a full queue, a phone that is off, a carrier in trouble.
TEMPORARY = {30001, 30003, 30008, 30017, 30022, 30036, 30410}
OPTED_OUT = {21610}
# SIP responses of failed calls: not found, incomplete, does not exist; unwanted, or rejected as spam.
SIP = "SIP "
SIP_NUMBER = {404, 484, 604}
SIP_FILTERED = {607, 608}
LATER = {20429, 10004, 14107, 21611, 22005}
NOT_IN_PROGRESS = 21220
NOT_AUTHORIZED = {401, 403}
NOT_UNDERSTOOD_STATUS = 408  # "request timeout" may come from a proxy, so the request may have been processed

_NOT_IN_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]+")

_LIBRARY_PREFIX = re.compile(r"^Unable to \w+ \w+: ")

RETRY_AFTER_S = 1.0
MAX_RETRY_AFTER_S = 300.0


def kind_of(code: int) -> str:
    """Return the kind of an error code.

    Number, permission, configuration, opted_out, filtered, temporary or other.
    """
    for kind, codes in (
        ("number", NUMBER),
        ("permission", PERMISSION),
        ("configuration", CONFIGURATION),
        ("opted_out", OPTED_OUT),
        ("filtered", FILTERED),
        ("temporary", TEMPORARY),
    ):
        if code in codes:
            return kind
    return "other"


# What people read about an error code. Reports of texts carry only the code. For others, the provider's own
# message is shown in English, and this sentence in other languages.
_MEANINGS = {
    code: meaning
    for codes, meaning in (
        ((13223, 13224, 21211, 21217), mark_stored("the phone number is not valid")),
        ((13225, 21216), mark_stored("the account may not call this phone")),
        ((13226, 13227, 21203, 21215), mark_stored("the account may not call this country")),
        ((13214, 13247, 21210, 21212, 21606), mark_stored("the caller number can't be used")),
        ((14108, 21612, 21616), mark_stored("the number can't send texts to this phone")),
        ((14111, 21219, 21607, 21608), mark_stored("a trial account reaches only verified phones")),
        ((21202,), mark_stored("the phone number is a premium number")),
        ((21205, 21609), mark_stored("the provider can't reach the address of this installation")),
        ((21214, 30003), mark_stored("the phone can't be reached")),
        ((21408,), mark_stored("the account may not send texts to this country")),
        ((21610,), mark_stored("the phone opted out of texts")),
        ((21614,), mark_stored("the phone can't receive texts")),
        ((10001, 20005, 30002), mark_stored("the account was suspended")),
        ((20003, 20006, 20008), mark_stored("the provider did not accept the account's credentials")),
        ((20404,), mark_stored("the provider does not know the account or the number")),
        ((20429,), mark_stored("the account made too many requests")),
        ((30001, 30017, 30022), mark_stored("too many texts were sent at once")),
        ((30004,), mark_stored("the phone blocks texts")),
        ((30005,), mark_stored("the phone number is not in service")),
        ((30006,), mark_stored("the phone is a landline, or its carrier can't be reached")),
        ((30007,), mark_stored("carriers filter the text as spam")),
        ((30008,), mark_stored("the carrier did not give a reason")),
        ((30010,), mark_stored("the text costs more than the account's maximum price")),
        ((30018,), mark_stored("the carrier requires a registered sender")),
        ((30023, 30027), mark_stored("the daily limit of the number's registration is reached")),
        ((30024,), mark_stored("the number is not set up at the carrier yet")),
        ((30032,), mark_stored("the toll-free number is not verified")),
        ((30033,), mark_stored("the number's A2P 10DLC campaign is suspended")),
        ((30034,), mark_stored("the number is not registered (A2P 10DLC)")),
        ((30035,), mark_stored("the number's registration is still in progress")),
        ((30036,), mark_stored("the text was too old to be delivered")),
        ((30410,), mark_stored("the carrier did not answer in time")),
        ((32017,), mark_stored("carriers block the call as spam")),
    )
    for code in codes
}
_SIP_MESSAGE = mark_stored("the network answered with SIP {code}")


def kind_of_text(code: str) -> str:
    """Return the kind of an error code as stored: Twilio's number, or a SIP response ("SIP 404")."""
    if not code.startswith(SIP):
        return kind_of(parse_int(code) or 0)
    response = parse_int(code.removeprefix(SIP)) or 0
    if response in SIP_NUMBER:
        return "number"
    return "filtered" if response in SIP_FILTERED else "temporary"


def sip_error(status: str, response: str) -> tuple[str, str]:
    """Return error code and message of a failed call without an error code, by its SIP response."""
    value = parse_int(response)
    if status != "failed" or value is None or not 400 <= value < 700:
        return "", ""
    return f"{SIP}{value}", _SIP_MESSAGE.format(code=value)


def meaning_of(code: int) -> str:
    """Describe an error code in English; empty for one that needs no description."""
    return _MEANINGS.get(code, "")


def is_account_wide(status: int, code: int) -> bool:
    """Return whether the refusal applies to every request of the account."""
    if code in ACCOUNT | ADDRESSES:
        return True
    return status in NOT_AUTHORIZED and kind_of(code) == "other"


def is_rate_limit(error: Any) -> bool:
    """Return whether an error response says that there were too many requests."""
    return getattr(error, "status", 0) == 429 or getattr(error, "code", 0) in LATER


def outcome_of_error(error: Any, retry_after_s: float | None) -> Outcome:
    """Return the outcome of an error response to a create request.

    A 5xx (also 20503) may have created a call nevertheless. A refusal for an unknown reason counts as
    `configuration`, so that it reaches a person who can act on it.
    """
    status, code = getattr(error, "status", 0) or 0, getattr(error, "code", 0) or 0
    if is_rate_limit(error):
        wait = RETRY_AFTER_S if retry_after_s is None else min(max(retry_after_s, 0.1), MAX_RETRY_AFTER_S)
        return RateLimited(wait, f"{code}")
    if 400 <= status < 500 and status != NOT_UNDERSTOOD_STATUS:
        kind = "configuration" if kind_of(code) == "other" else kind_of(code)
        wide = is_account_wide(status, code)
        return Rejected(kind in ("number", "opted_out"), str(code), message_of(error), kind, wide)
    return Unknown(f"error {status or type(error).__name__} {code or ''}".strip())


def describe_error(error: Any) -> str:
    """Return status, code and message of an error, for the log. For lists, the SDK keeps only a message."""
    parts = (getattr(error, "status", ""), getattr(error, "code", ""), message_of(error) or str(error))
    return " ".join(str(part) for part in parts if part)[:500]


def message_of(error: Any) -> str:
    """Return the provider's message without the SDK's prefix."""
    return _LIBRARY_PREFIX.sub("", str(getattr(error, "msg", "") or getattr(error, "title", "")))[:255]


def speakable_text(text: str) -> str:
    """Return `text` without characters that XML forbids (a customer's notes may contain them)."""
    return _NOT_IN_XML.sub(" ", text).strip()


def parse_int(text: Any) -> int | None:
    """Parse a nonnegative integer (seconds or a sequence number). Return None for anything else."""
    value = str(text) if text is not None else ""
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else None
