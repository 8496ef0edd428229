"""Call the phone of an admin with a sample of a voice (`voice_samples`).

The call is a test call (`number_check_calls`) from one of the organization's numbers. Its context names the row,
so that the prompt is built when the call is answered.
"""

from __future__ import annotations

from datetime import timedelta

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.telephony import number_check_calls
from dispatch.telephony.models import Call

# Calls to one phone within an hour, so that nobody makes a phone ring all day.
MOST_PER_HOUR = 10


class TooManyPreviews(Exception):
    """The phone had MOST_PER_HOUR test calls within the last hour."""


def find_number(organization_id: int, pool_id: int | None = None) -> OutboundNumber | None:
    """Return a number of the organization, or of this pool, that can place calls; None if there is none."""
    numbers = OutboundNumber.objects.of(organization_id).filter(
        is_paused=False, pool__is_paused=False, account__is_active=True
    )
    if pool_id is not None:
        numbers = numbers.filter(pool_id=pool_id)
    number: OutboundNumber | None = numbers.select_related("account", "pool").order_by("pk").first()
    return number


def place_preview(
    number: OutboundNumber, organization: Organization, kind: str, subject_id: int, to_phone: str, *, actor: Actor
) -> Call:
    """Call the phone (E.164) with the sample of the row.

    Raises TooManyPreviews and the exceptions of `number_check_calls.place_test_call`.
    """
    calls = Call.objects.of(organization.pk).filter(
        purpose=Call.Purpose.TEST, to_phone=to_phone, created_at__gt=clock.now() - timedelta(hours=1)
    )
    if calls.count() >= MOST_PER_HOUR:
        raise TooManyPreviews
    context = {"preview": kind, "preview_id": subject_id}
    return number_check_calls.place_test_call(number, to_phone, actor=actor, context=context)
