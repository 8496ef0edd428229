"""The health of numbers that send texts: how many of the latest were blocked because of the number."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta

import structlog

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.telephony import providers
from dispatch.telephony.models import Text

log = structlog.get_logger(__name__)

SPAN, LATEST = timedelta(days=1), 100
# A number is blocked if at least this many of its latest texts were, and at least this share of them.
MIN_BLOCKED, MIN_SHARE = 3, 0.2
# Kinds of error codes that are about the number, its registration or the wording, not about the phone.
BLOCKED = frozenset({"filtered", "configuration"})


@dataclass(frozen=True)
class TextHealth:
    """The latest texts of a number: how many there were, and how many were blocked, by error code."""

    texts: int
    blocked: dict[str, int] = field(default_factory=dict)

    @property
    def is_blocked(self) -> bool:
        count = sum(self.blocked.values())
        return count >= MIN_BLOCKED and count >= MIN_SHARE * self.texts

    def describe(self) -> str:
        """Describe the texts in a phrase for the number's page."""
        if not self.texts:
            return "no texts within 24 hours"
        if not self.blocked:
            return f"none of the latest {self.texts} texts was blocked"
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.blocked.items()))
        return f"{sum(self.blocked.values())} of the latest {self.texts} texts were blocked (error {codes})"


def text_health(number: OutboundNumber) -> TextHealth:
    """Return the health of a number by its latest texts within 24 hours."""
    texts = Text.objects.filter(number_id=number.pk, requested_at__gt=clock.now() - SPAN)
    codes = list(texts.order_by("-requested_at").values_list("error_code", flat=True)[:LATEST])
    counted = Counter(code for code in codes if code)
    if not counted:
        return TextHealth(len(codes))
    try:
        provider = providers.for_account(number.account)
    except Exception:
        log.exception("provider_unusable", account=number.account_id)
        return TextHealth(len(codes))
    return TextHealth(len(codes), {code: n for code, n in counted.items() if provider.about(code) in BLOCKED})
