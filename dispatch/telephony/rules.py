"""What statuses mean and which way they go, who may be called, and what a silence means. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import phonenumbers
from phonenumbers import PhoneNumberType

# Statuses only move to a higher rank; all ends are equal, and final. (`created` is also what a request returns to
# when the provider says for certain that it did not process it.)
RANK = {
    "created": 0,
    "requesting": 1,
    "unknown": 2,
    "submitted": 3,
    "ringing": 4,
    "answered": 5,
    "completed": 9,
    "busy": 9,
    "no_answer": 9,
    "failed": 9,
    "canceled": 9,
    "rejected": 9,
    "not_placed": 9,
    "lost": 9,
}
ENDS = frozenset(status for status, rank in RANK.items() if rank == 9)
# The provider has no call of ours in these ends.
NEVER_PLACED = frozenset({"rejected", "not_placed"})

REFUSED_TYPES = {
    PhoneNumberType.PREMIUM_RATE: "premium-rate number",
    PhoneNumberType.SHARED_COST: "shared-cost number",
}

# A call created so much before we asked is not ours, however the clocks differ.
LISTING_SKEW = timedelta(seconds=30)
# How long a report may be late before we ask, and how long the provider may say nothing before we give up.
END_MARGIN = timedelta(seconds=60)
GIVE_UP_AFTER = timedelta(hours=25)
# A call just created belongs to its creator for so long, then to the placer.
CREATORS_TIME = timedelta(seconds=1)


def is_forward(current: str, new: str) -> bool:
    """Whether a call may move from `current` to `new`."""
    return RANK[new] > RANK[current]


def why_not_callable(phone: str, countries: Collection[str]) -> str | None:
    """Why an organization that may call `countries` (ISO codes) must not call `phone` (E.164); None: it may."""
    try:
        number = phonenumbers.parse(phone, None)
    except phonenumbers.NumberParseException:
        return "not a phone number"
    if not phonenumbers.is_possible_number(number):
        return "not a phone number"
    country = phonenumbers.region_code_for_number(number)
    if country is None:
        # Possible, but of no known range: its country is one of those that share the calling code.
        sharing = phonenumbers.region_codes_for_country_code(number.country_code or 0)
        if not set(sharing) & set(countries):
            return "country not allowed"
    elif country not in countries:
        return f"country not allowed: {country}"
    kind = REFUSED_TYPES.get(phonenumbers.number_type(number))
    return f"{kind} refused" if kind else None


@dataclass(frozen=True)
class Listed:
    """A call as the provider lists it; `created_at` on our clock."""

    sid: str
    status: str
    created_at: datetime | None


def ours_among(listed: Sequence[Listed], requested_at: datetime, known_sids: Collection[str]) -> Listed | None:
    """The listed call that our request of `requested_at` made, if any. There is one open call per phone and
    organization, so whatever is neither known nor older is ours; the earliest, should there be several."""
    found = [
        call
        for call in listed
        if call.sid not in known_sids
        and (call.created_at is None or call.created_at >= requested_at - LISTING_SKEW)
    ]
    return min(found, key=lambda call: call.created_at or requested_at, default=None)


def listing_counts(
    now: datetime, send_by: datetime, checked_at: datetime | None, provider_s: float, gap_s: float
) -> bool:
    """Whether an empty listing now says something: the request must be long over, and the last listing long
    ago."""
    if now < send_by + timedelta(seconds=provider_s):
        return False
    return checked_at is None or now >= checked_at + timedelta(seconds=gap_s)


def end_expected_by(
    requested_at: datetime, answered_at: datetime | None, ring_timeout_s: int, time_limit_s: int
) -> datetime:
    """When the end of a call should have been reported; later, we ask."""
    if answered_at is not None:
        return answered_at + timedelta(seconds=time_limit_s) + END_MARGIN
    return requested_at + timedelta(seconds=ring_timeout_s) + END_MARGIN
