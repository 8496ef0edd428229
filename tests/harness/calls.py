"""Place a call at once, with the two steps of the placer."""

from __future__ import annotations

from dispatch.telephony.models import Call
from dispatch.telephony.services.call_requests import claim_for_placing, request_from_provider


def place_call(call_id: int) -> Call:
    """Claim a due, created call and request it from the provider; leave any other unchanged. Return the call."""
    call, changed = claim_for_placing(call_id, known=Call.objects.get(pk=call_id))
    if changed and call.status == Call.Status.REQUESTING:
        return request_from_provider(call)
    return call
