"""Find messages by their time of creation without an index on it: ids are assigned in that order.

The clocks of the machines that accept messages may differ, so the id bound leaves a margin, and the time decides.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypeVar

from django.db.models import Max, Min, QuerySet

from dispatch.outbox.models import Message

M = TypeVar("M", bound=QuerySet[Any])
# How far the clocks of two machines may differ without hiding a message.
MARGIN = timedelta(hours=1)


def created_since(messages: M, organization_id: int, at: datetime) -> M:
    """Return those of the organization's messages that were created at `at` or later."""
    return messages.filter(id__gte=_first_id(organization_id, _shifted(at, -MARGIN)), created_at__gte=at)


def created_before(messages: M, organization_id: int, at: datetime) -> M:
    """Return those of the organization's messages that were created before `at`."""
    return messages.filter(id__lt=_first_id(organization_id, _shifted(at, MARGIN)), created_at__lt=at)


def _shifted(at: datetime, by: timedelta) -> datetime:
    try:
        return at + by
    except OverflowError:  # the first or last hour of the calendar
        return at


def _first_id(organization_id: int, at: datetime) -> int:
    """Return the lowest id whose message was created at `at` or later, by a binary search over the ids."""
    own = Message.objects.of(organization_id).order_by()
    ends = own.aggregate(low=Min("id"), high=Max("id"))
    if ends["low"] is None:
        return 0
    low, high = ends["low"], ends["high"] + 1
    while low < high:
        middle = (low + high) // 2
        found = own.filter(id__gte=middle).order_by("id").values_list("id", "created_at").first()
        if found is None or found[1] >= at:
            high = middle
        else:
            low = found[0] + 1
    return low
