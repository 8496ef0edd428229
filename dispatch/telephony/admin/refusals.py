"""Say why a call could not be placed."""

from __future__ import annotations

from dispatch.core.languages import gettext, mark
from dispatch.core.stored_texts import translate_stored
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy

_NO_LINE = {
    "lines_busy": mark("all lines of this number are in use, or reserved for alerts and offers"),
    "pool_full": mark("its pool is full"),
    "pool_paused": mark("its pool is paused"),
    "no_number": mark("the number can't place calls now"),
}


def describe_refusal(error: Exception) -> str:
    """Return the reason of a refused test call, as the rest of a sentence."""
    match error:
        case NoLine():
            return gettext(error.detail or _NO_LINE[error.reason])
        case PhoneBusy():
            return gettext("that phone already has an open call")
        case CallNotAllowed():
            return translate_stored(error.reason)
    return gettext("the number, its pool or its account is paused")
