"""Everything that changes a call or a text, by what it does."""

from dispatch.capacity.lines import NoLine
from dispatch.telephony.errors import CallNotAllowed, NoTextNumber, OptedOut, PhoneBusy, TextNotAllowed
from dispatch.telephony.services.creating import call_of, calls_of, create_call, open_call_of
from dispatch.telephony.services.hanging_up import hang_up
from dispatch.telephony.services.opting import opt_in, opt_out
from dispatch.telephony.services.placing import place
from dispatch.telephony.services.progress import blames_the_number
from dispatch.telephony.services.sending import send
from dispatch.telephony.services.texting import (
    cancel_texts,
    create_text,
    is_opted_out,
    may_text,
    text_of,
    texts_of,
)

__all__ = [
    "CallNotAllowed",
    "NoLine",
    "NoTextNumber",
    "OptedOut",
    "PhoneBusy",
    "TextNotAllowed",
    "blames_the_number",
    "call_of",
    "calls_of",
    "cancel_texts",
    "create_call",
    "create_text",
    "hang_up",
    "is_opted_out",
    "may_text",
    "open_call_of",
    "opt_in",
    "opt_out",
    "place",
    "send",
    "text_of",
    "texts_of",
]
