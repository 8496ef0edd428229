"""Everything that changes a call, by what it does."""

from dispatch.capacity.lines import NoLine
from dispatch.telephony.errors import CallNotAllowed, PhoneBusy
from dispatch.telephony.services.creating import call_of, calls_of, create_call, open_call_of
from dispatch.telephony.services.hanging_up import hang_up
from dispatch.telephony.services.placing import place
from dispatch.telephony.services.progress import blames_the_number

__all__ = [
    "CallNotAllowed",
    "NoLine",
    "PhoneBusy",
    "blames_the_number",
    "call_of",
    "calls_of",
    "create_call",
    "hang_up",
    "open_call_of",
    "place",
]
