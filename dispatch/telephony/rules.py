"""Define the rules of calls as pure functions: status order, callable numbers, missing reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

import phonenumbers
from phonenumbers import PhoneNumberType

from dispatch.core.phone_numbers import read_stored_phone

# A status only moves to a higher rank. All end statuses have the same rank and are final. (A request also returns
# to `created` if it is certain that the provider did not process it.)
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
# End statuses of calls that do not exist at the provider.
NEVER_PLACED = frozenset({"rejected", "not_placed"})

REFUSED_TYPES = {
    PhoneNumberType.PREMIUM_RATE: "premium-rate number",
    PhoneNumberType.SHARED_COST: "shared-cost number",
}

# A call created this long before our request is not ours, whatever the clock difference.
LISTING_SKEW = timedelta(seconds=30)
# Time to wait for an overdue report before asking the provider, and age at which a call without an answer is lost.
END_MARGIN = timedelta(seconds=60)
GIVE_UP_AFTER = timedelta(hours=25)
# For this long, only the creator of a new call places it; then the placer does too.
CREATORS_TIME = timedelta(seconds=1)


def is_forward(current: str, new: str) -> bool:
    """Return whether a call may move from `current` to `new`."""
    return RANK[new] > RANK[current]


def why_not_callable(phone: str, countries: Collection[str]) -> str | None:
    """Return why an organization that may call `countries` (ISO codes) must not call `phone` (E.164), or None."""
    known = _number_facts(phone)
    if known is None:
        return "not a phone number"
    if not known.country:
        if not known.possible_countries & set(countries):
            return "country not allowed"
    elif known.country not in countries:
        return f"country not allowed: {known.country}"
    return f"{known.refused_type} not allowed" if known.refused_type else None


class _NumberFacts(NamedTuple):
    """Where a possible number is, and whether nobody may call its type.

    `country`: "" if it is in no known range; then it may be in any of `possible_countries`, which share the
    calling code.
    """

    country: str
    possible_countries: frozenset[str]
    refused_type: str


@lru_cache(maxsize=4096)
def _number_facts(phone: str) -> _NumberFacts | None:
    """Return the facts about a number, or None if it is none."""
    number = read_stored_phone(phone)
    if number.country_code is None or not phonenumbers.is_possible_number(number):
        return None
    country = phonenumbers.region_code_for_number(number)
    sharing = () if country else phonenumbers.region_codes_for_country_code(number.country_code or 0)
    refused_type = REFUSED_TYPES.get(phonenumbers.number_type(number), "")
    return _NumberFacts(country or "", frozenset(sharing), refused_type)


@dataclass(frozen=True)
class ListedCall:
    """A call in the provider's list. `created_at` is converted to our clock."""

    sid: str
    status: str
    created_at: datetime | None


def find_our_call(
    listed: Sequence[ListedCall], requested_at: datetime, known_sids: Collection[str]
) -> ListedCall | None:
    """Return the listed call that our request of `requested_at` created, or None.

    A phone has at most one open call per organization, so a call that is neither known nor older than the request
    is ours. If there are several, the earliest is ours.
    """
    candidates = [
        call
        for call in listed
        if call.sid not in known_sids
        and (call.created_at is None or call.created_at >= requested_at - LISTING_SKEW)
    ]
    return min(candidates, key=lambda call: call.created_at or requested_at, default=None)


# (unmatched requests, sum of the differences in seconds, (request, listed) of each match).
_Match = tuple[int, float, tuple[tuple[int, int], ...]]


def match_requests(listed: Sequence[ListedCall], requested: Sequence[datetime]) -> list[ListedCall | None]:
    """Match equal requests, in the order of their times, to what the provider lists, newest first.

    None: it is not listed. As many as possible are matched, in the order of time, with the least sum of
    differences. Nothing that was created long before a request is matched to it.
    """
    if not requested:
        return []
    ordered = list(reversed(listed))
    ordered.sort(key=lambda one: one.created_at or requested[0])
    best: list[list[_Match]] = []  # best[i][j]: of the first i requests and the first j listed
    for i in range(len(requested) + 1):
        row: list[_Match] = []
        for j in range(len(ordered) + 1):
            options: list[_Match] = [(i, 0.0, ())] if i == 0 or j == 0 else []
            if i and j:
                options = [row[j - 1], (best[i - 1][j][0] + 1, *best[i - 1][j][1:])]
                created_at = ordered[j - 1].created_at
                after_s = (created_at - requested[i - 1]).total_seconds() if created_at else 0.0
                if after_s >= -LISTING_SKEW.total_seconds():
                    unmatched, seconds, pairs = best[i - 1][j - 1]
                    options.append((unmatched, seconds + abs(after_s), (*pairs, (i - 1, j - 1))))
            row.append(min(options, key=lambda option: option[:2]))
        best.append(row)
    found = dict(best[-1][-1][2])
    return [ordered[found[i]] if i in found else None for i in range(len(requested))]


def listing_counts(
    now: datetime, send_by: datetime, checked_at: datetime | None, provider_s: float, gap_s: float
) -> bool:
    """Return whether an empty listing at `now` counts as evidence that nothing was created.

    It counts if the request and the previous listing both ended long enough ago.
    """
    if now < send_by + timedelta(seconds=provider_s):
        return False
    return checked_at is None or now >= checked_at + timedelta(seconds=gap_s)
