"""Place a call at once, as the process that created it does."""

from __future__ import annotations

from dispatch.telephony.models import Call
from dispatch.telephony.services.call_requests import place_soon


def place_call(call_id: int) -> Call:
    """Request a due, created call from the provider; leave any other unchanged. Return the call."""
    place_soon(Call.objects.get(pk=call_id))
    return Call.objects.get(pk=call_id)
