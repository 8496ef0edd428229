"""Find rows by their time of creation without an index on it: ids are assigned in that order.

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
    own = Message.objects.of(organization_id).order_by()
    return messages.filter(id__gte=first_id(own, "created_at", shift_time(at, -MARGIN)), created_at__gte=at)


def created_before(messages: M, organization_id: int, at: datetime) -> M:
    """Return those of the organization's messages that were created before `at`."""
    own = Message.objects.of(organization_id).order_by()
    return messages.filter(id__lt=first_id(own, "created_at", shift_time(at, MARGIN)), created_at__lt=at)


def shift_time(at: datetime, by: timedelta) -> datetime:
    """Return `at + by`, within the calendar."""
    try:
        return at + by
    except OverflowError:  # the first or last hour of the calendar
        return at


def first_id(own: QuerySet[Any], column: str, at: datetime) -> int:
    """Return the lowest id of these rows whose time in `column` is `at` or later, by a binary search over the ids.

    Ids must be assigned in the order of these times.
    """
    ends = own.aggregate(low=Min("id"), high=Max("id"))
    if ends["low"] is None:
        return 0
    low, high = ends["low"], ends["high"] + 1
    while low < high:
        middle = (low + high) // 2
        found = own.filter(id__gte=middle).order_by("id").values_list("id", column).first()
        if found is None or found[1] >= at:
            high = middle
        else:
            low = found[0] + 1
    return low
