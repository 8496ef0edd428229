"""The health of caller numbers: how their latest calls and texts fared.

An unhealthy number rests (`services.number_rests`): no calls are placed from it while another number of its pool
is healthy. A number whose texts carriers block is the last choice for texts, but goes on calling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.core.exceptions import ImproperlyConfigured

from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.core.languages import gettext
from dispatch.core.stored_texts import mark_stored
from dispatch.telephony import providers
from dispatch.telephony.models import NumberHealthPolicy, Text

log = structlog.get_logger(__name__)

LATEST_TEXTS = 100
# A number is blocked for texts only if at least this many of its latest were.
MIN_BLOCKED = 3
# Kinds of error codes that are about the number, its registration or the wording, not about the phone.
BLOCKED = frozenset({"filtered", "configuration"})
# Kinds of a failed call that say nothing about the caller number.
NOT_THE_CALLER = frozenset({"number", "permission"})

_ENDED = """
SELECT c.number_id, c.answered_at IS NOT NULL, c.status = 'failed', c.error_code, count(*)
FROM telephony_call c
JOIN capacity_outboundnumber n ON n.id = c.number_id
LEFT JOIN telephony_numberhealthpolicy p ON p.organization_id = n.organization_id
WHERE c.requested_at > %(oldest)s AND c.ended_at IS NOT NULL AND c.sid IS NOT NULL
    AND c.status IN ('completed', 'busy', 'no_answer', 'failed') AND c.purpose <> 'test'
    AND c.requested_at > %(now)s::timestamptz - COALESCE(p.window_hours, %(hours)s::int) * interval '1 hour'
    AND (n.rests_until IS NULL OR c.requested_at > n.rests_until)
    AND (%(numbers)s::bigint[] IS NULL OR n.id = ANY(%(numbers)s::bigint[]))
GROUP BY 1, 2, 3, 4
"""

# Why a number rests.
MANY_BLOCKED = mark_stored("carriers blocked {number} of {count} calls")
MANY_FAILED = mark_stored("{number} of {count} calls failed")
FEW_ANSWERED = mark_stored("only {number} of {count} calls were answered")


@dataclass(frozen=True)
class TextHealth:
    """The latest texts of a number: how many there were, and how many were blocked, by error code."""

    texts: int
    blocked: dict[str, int] = field(default_factory=dict)
    max_percent: int = 20

    @property
    def is_blocked(self) -> bool:
        count = sum(self.blocked.values())
        return self.max_percent < 100 and count >= MIN_BLOCKED and count * 100 >= self.max_percent * self.texts

    def describe(self) -> str:
        """Describe the texts in a phrase for the number's page."""
        if not self.texts:
            return gettext("no texts lately")
        if not self.blocked:
            return gettext("none of the latest {count} texts was blocked").format(count=self.texts)
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.blocked.items()))
        return gettext("{blocked} of the latest {count} texts were blocked (error {codes})").format(
            blocked=sum(self.blocked.values()), count=self.texts, codes=codes
        )


@dataclass(frozen=True)
class CallHealth:
    """The ended calls of a number within its window, since its last rest.

    `failed`: calls that failed for another reason than the called phone. `blocked`: those of them that carriers
    rejected as unwanted.
    """

    calls: int = 0
    answered: int = 0
    failed: int = 0
    blocked: int = 0

    def problem(self, policy: NumberHealthPolicy) -> str:
        """Return why the number is unhealthy under this policy; empty if it is healthy or has too few calls."""
        if self.calls < policy.min_calls:
            return ""
        if self.blocked * 100 > self.calls * policy.max_blocked_percent:
            return MANY_BLOCKED.format(number=self.blocked, count=self.calls)
        if self.failed * 100 > self.calls * policy.max_error_percent:
            return MANY_FAILED.format(number=self.failed, count=self.calls)
        if self.answered * 100 < self.calls * policy.min_answer_percent:
            return FEW_ANSWERED.format(number=self.answered, count=self.calls)
        return ""

    def describe(self) -> str:
        """Describe the calls in a phrase for the number's page."""
        if not self.calls:
            return gettext("no ended calls lately")
        return gettext(
            "{answered} of {count} calls answered, {failed} failed, {blocked} blocked by carriers"
        ).format(answered=self.answered, count=self.calls, failed=self.failed, blocked=self.blocked)


def policy_of(organization_id: int) -> NumberHealthPolicy:
    """Return the organization's thresholds: its row, or the defaults."""
    row: NumberHealthPolicy | None = NumberHealthPolicy.objects.filter(organization_id=organization_id).first()
    return row or NumberHealthPolicy(organization_id=organization_id)


def text_health(number: OutboundNumber) -> TextHealth:
    """Return the health of a number by its latest texts within the window."""
    policy = policy_of(number.organization_id)
    since = clock.now() - timedelta(hours=policy.window_hours)
    texts = Text.objects.filter(number_id=number.pk, requested_at__gt=since)
    codes = list(texts.order_by("-requested_at").values_list("error_code", flat=True)[:LATEST_TEXTS])
    counted = Counter(code for code in codes if code)
    blocked = {code: n for code, n in counted.items() if _about(number.account, code) in BLOCKED}
    return TextHealth(len(codes), blocked, policy.max_blocked_percent)


def call_health(number: OutboundNumber) -> CallHealth:
    """Return the health of a number by its calls within the window."""
    return read_call_health([number]).get(number.pk, CallHealth())


def read_call_health(numbers: Iterable[OutboundNumber] | None = None) -> dict[int, CallHealth]:
    """Return the health of the numbers (default: all) that have ended calls within their window, by id."""
    now = clock.now()
    longest = (
        NumberHealthPolicy.objects.order_by("-window_hours").values_list("window_hours", flat=True).first() or 0
    )
    default = NumberHealthPolicy().window_hours
    given: dict[str, Any] = {
        "now": now,
        "oldest": now - timedelta(hours=max(longest, default)),
        "hours": default,
        "numbers": None if numbers is None else prepared.integers(number.pk for number in numbers),
    }
    counted: dict[int, Counter[str]] = {}
    rows = prepared.fetch_by_index(_ENDED, given)
    accounts = _accounts({row[0] for row in rows if row[3]})
    for number_id, is_answered, is_failed, code, count in rows:
        of_number = counted.setdefault(number_id, Counter())
        kind = _about(accounts.get(number_id), code) if code else "other"
        if is_failed and kind in NOT_THE_CALLER:
            continue
        of_number["calls"] += count
        of_number["answered"] += count if is_answered else 0
        of_number["failed"] += count if is_failed else 0
        of_number["blocked"] += count if is_failed and kind == "filtered" else 0
    return {number_id: CallHealth(**of_number) for number_id, of_number in counted.items()}


def _accounts(number_ids: set[int]) -> dict[int, ProviderAccount]:
    """Return the accounts by number, without those whose credentials cannot be decrypted."""
    numbers = dict(OutboundNumber.objects.filter(pk__in=number_ids).values_list("pk", "account_id"))
    accounts: dict[int, ProviderAccount] = {}
    for account_id in sorted(set(numbers.values())):
        try:
            accounts[account_id] = ProviderAccount.objects.get(pk=account_id)
        except ImproperlyConfigured:
            log.exception("provider_unusable", account=account_id)
    return {number: accounts[account_id] for number, account_id in numbers.items() if account_id in accounts}


def _about(account: ProviderAccount | None, code: str) -> str:
    if account is None:
        return "other"
    try:
        return providers.for_account(account).about(code)
    except Exception:
        log.exception("provider_unusable", account=account.pk)
        return "other"


def is_resting(number: OutboundNumber, now: datetime | None = None) -> bool:
    """Return whether the number is avoided now."""
    return number.rests_until is not None and number.rests_until > (now or clock.now())
