"""Place a call at once, as the process that created it does."""

from __future__ import annotations

from dispatch.telephony.models import Call
from dispatch.telephony.request_threads import CALLS
from dispatch.telephony.services.call_requests import place_soon
from tests.support.waiting import wait_until


def place_call(call_id: int) -> Call:
    """Request a due, created call, and wait for the outcome; leave any other unchanged. Return the call."""
    place_soon(Call.objects.get(pk=call_id))
    wait_until(lambda: call_id not in CALLS.items())  # if the process has threads for requests
    return Call.objects.get(pk=call_id)
