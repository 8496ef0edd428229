"""Change calls and texts. No code outside this package changes them."""

from dispatch.capacity.line_leases import NoLine
from dispatch.telephony.errors import CallNotAllowed, NoTextNumber, OptedOut, PhoneBusy, TextNotAllowed
from dispatch.telephony.rules import why_not_callable
from dispatch.telephony.services.call_requests import hang_up, place_soon, repeat_prompt
from dispatch.telephony.services.call_status import (
    has_webhook,
    is_bad_number,
    is_not_permitted,
    record_silence,
)
from dispatch.telephony.services.calls import call_of, calls_of, create_call, open_call_of
from dispatch.telephony.services.connections import PURPOSE as CONNECT
from dispatch.telephony.services.connections import create_legs
from dispatch.telephony.services.keys import PressedKey, apply_keys_of, find_waiting, keys_of
from dispatch.telephony.services.recorded_answers import apply_inbound_keys_of, apply_texts_from
from dispatch.telephony.services.sms import (
    cancel_texts,
    create_text,
    is_opted_out,
    may_text,
    opt_in,
    opt_out,
    opted_out,
    text_of,
    textable,
    texts_of,
)
from dispatch.telephony.services.sms_requests import send_text, wake_texts
from dispatch.telephony.services.spend_caps import REASON as SPEND_CAP
from dispatch.telephony.services.spend_caps import call_hold as spend_hold
from dispatch.telephony.services.spend_caps import on_resume as on_spend_resume
from dispatch.telephony.services.text_failures import why_texts_fail
from dispatch.telephony.services.unheard_calls import was_heard

__all__ = [
    "CONNECT",
    "SPEND_CAP",
    "CallNotAllowed",
    "NoLine",
    "NoTextNumber",
    "OptedOut",
    "PhoneBusy",
    "PressedKey",
    "TextNotAllowed",
    "apply_inbound_keys_of",
    "apply_keys_of",
    "apply_texts_from",
    "call_of",
    "calls_of",
    "cancel_texts",
    "create_call",
    "create_legs",
    "create_text",
    "find_waiting",
    "hang_up",
    "has_webhook",
    "is_bad_number",
    "is_not_permitted",
    "is_opted_out",
    "keys_of",
    "may_text",
    "on_spend_resume",
    "open_call_of",
    "opt_in",
    "opt_out",
    "opted_out",
    "place_soon",
    "record_silence",
    "repeat_prompt",
    "send_text",
    "spend_hold",
    "text_of",
    "textable",
    "texts_of",
    "wake_texts",
    "was_heard",
    "why_not_callable",
    "why_texts_fail",
]
