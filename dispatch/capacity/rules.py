"""Decide, in pure functions, which slots a purpose may take and which number is chosen."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from dispatch.core.languages import gettext

ALERT, OFFER, JOB_NEWS, LEAD = "alert", "offer", "job_news", "lead"

# Seconds until a retry makes sense, by the reason why there was no line.
RETRY_IN_S = {"lines_busy": 1.0, "pool_full": 1.0, "no_number": 10.0, "pool_paused": 5.0,
               "refused": 3.0, "no_answer": 3.0, "spend_cap": 3.0}  # fmt: skip


@dataclass(frozen=True)
class NumberLimits:
    """The lines of an active number: slots 1…`lines`, the topmost of them reserved."""

    id: int
    lines: int
    for_alerts: int = 0
    for_offers: int = 0


def slot_ranges(number: NumberLimits, purpose: str) -> list[tuple[int, int]]:
    """Return the (lowest, highest) slots that `purpose` may take on the number, in the order of trying.

    From the top, slots are reserved for alerts, then for offers; the rest is common. A purpose with reserved slots
    tries those first, so that the common slots stay free for the others.
    """
    offers_from = number.lines - number.for_alerts
    common = offers_from - number.for_offers
    ranges = [(1, common)]
    if purpose in (ALERT, OFFER):
        ranges.insert(0, (common + 1, offers_from))
    if purpose == ALERT:
        ranges.insert(0, (offers_from + 1, number.lines))
    return [(low, high) for low, high in ranges if low <= high]


def free_lines(
    numbers: Collection[NumberLimits], purpose: str, taken: Mapping[int, Collection[int]]
) -> Iterator[tuple[int, int]]:
    """Yield (number id, slot) of every free line that `purpose` may take, best first.

    The number with the most free lines comes first, with its slots in the order of `slot_ranges`. `taken` maps a
    number's id to its slots in use. A number with as many calls as lines, or more because its lines were reduced,
    yields none.
    """
    for number in sorted(numbers, key=lambda n: (len(taken.get(n.id, ())) - n.lines, n.id)):
        used = taken.get(number.id, ())
        if len(used) >= number.lines:
            continue
        for low, high in slot_ranges(number, purpose):
            yield from ((number.id, slot) for slot in range(low, high + 1) if slot not in used)


def free_pool_slots(concurrency: int, taken: Collection[int]) -> Iterator[int]:
    """Yield the pool's free slots, lowest first; none if the pool has reached its concurrency."""
    if len(taken) < concurrency:
        yield from (slot for slot in range(1, concurrency + 1) if slot not in taken)


def pace_interval_s(calls_per_second: float) -> float:
    """Return the seconds between two requests of an account."""
    return 1.0 / calls_per_second


_TWILIO_ID = re.compile(r"AC[0-9a-fA-F]{32}")
_TWILIO_KEY = re.compile(r"SK[0-9a-fA-F]{32}")
_PART_OF_HOST = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
MESSAGING_SERVICE = r"^MG[0-9a-fA-F]{32}\Z"


def account_id_problem(provider: str, account_id: str) -> str | None:
    """Return why the id cannot belong to an account at the provider, and how to fix it; None if it can."""
    if provider != "twilio" or _TWILIO_ID.fullmatch(account_id):
        return None
    if account_id[:2].upper() == "SK":
        return gettext("This is the SID of an API key. Enter the Account SID, which begins with AC.")
    return gettext("Not a Twilio Account SID, which is AC followed by 32 hexadecimal digits.")


def account_problems(
    provider: str, *, account_sid: str, api_key_sid: str, has_secret: bool, region: str, edge: str
) -> dict[str, str]:
    """Return what is wrong with an account's settings, by field."""
    problems = {}
    if problem := account_id_problem(provider, account_sid):
        problems["account_sid"] = problem
    if provider == "twilio" and api_key_sid and not _TWILIO_KEY.fullmatch(api_key_sid):
        problems["api_key_sid"] = gettext(
            "Not the SID of a Twilio API key, which is SK followed by 32 hexadecimal digits."
        )
    elif api_key_sid and not has_secret:
        problems["api_key_sid"] = gettext("Enter the secret of this API key, too.")
    for name, value in (("region", region), ("edge", edge)):
        if value and not _PART_OF_HOST.fullmatch(value):
            problems[name] = gettext("Use lower-case letters, digits and hyphens.")
    if region and not edge and "region" not in problems:
        problems["edge"] = gettext("Enter the edge of this region, such as dublin for ie1 or sydney for au1.")
    return problems
