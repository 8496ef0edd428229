"""Format identifiers, dates and phone numbers as the provider does."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from decimal import Decimal
from email.utils import format_datetime

E164 = re.compile(r"\+[1-9]\d{6,14}")
NANP = re.compile(r"\+1[2-9]\d{2}[2-9]\d{6}")
SERVICE = re.compile(r"MG[0-9a-f]{32}", re.IGNORECASE)
PREMIUM = re.compile(r"\+1(900|976)\d{7}|\+1\d{3}976\d{4}")


def new_sid(prefix: str) -> str:
    """Return a resource id: two letters and 32 hexadecimal digits.

    Not seeded: ids must stay unique when the simulator restarts and its clients do not.
    """
    return f"{prefix}{uuid.uuid4().hex}"


def rfc2822(epoch: float | None) -> str | None:
    """Format `Tue, 03 Nov 2026 14:05:09 +0000`, or None."""
    return None if epoch is None else format_datetime(datetime.fromtimestamp(int(epoch), UTC))


def is_e164(number: str) -> bool:
    """Return whether the number is written in E.164."""
    return E164.fullmatch(number) is not None


def is_service(sid: str) -> bool:
    """Return whether this is the id of a messaging service."""
    return SERVICE.fullmatch(sid) is not None


def is_plausible(number: str) -> bool:
    """Return False for a North American number that cannot exist."""
    return not number.startswith("+1") or NANP.fullmatch(number) is not None


def is_premium(number: str) -> bool:
    """Return whether the number is a premium-rate number."""
    return PREMIUM.fullmatch(number) is not None


def display(number: str) -> str:
    """Format a number as the provider does: `(602) 555-0101`. Others are returned unchanged."""
    if NANP.fullmatch(number):
        return f"({number[2:5]}) {number[5:8]}-{number[8:]}"
    return number


def mask(number: str) -> str:
    """Mask a number for logs: keep the start and the last two digits."""
    return f"{number[:5]}***{number[-2:]}" if len(number) > 8 else "***"


def price(rate: str, units: int) -> str:
    """Format what `units` at `rate` cost as the provider does: a charge is negative, such as `-0.01300`."""
    return f"{-Decimal(rate) * units:.5f}"
