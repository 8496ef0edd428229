"""Identifiers, dates and phone numbers in the provider's formats."""

from __future__ import annotations

import re
import uuid
from datetime import UTC, datetime
from email.utils import format_datetime

E164 = re.compile(r"\+[1-9]\d{6,14}")
NANP = re.compile(r"\+1[2-9]\d{2}[2-9]\d{6}")
PREMIUM = re.compile(r"\+1(900|976)\d{7}|\+1\d{3}976\d{4}")


def new_sid(prefix: str) -> str:
    """A resource id: two letters and 32 hexadecimal digits. Not of the seeded chance: a provider gives none twice,
    also when the simulator was started again and its callers were not."""
    return f"{prefix}{uuid.uuid4().hex}"


def rfc2822(epoch: float | None) -> str | None:
    """`Tue, 03 Nov 2026 14:05:09 +0000`, or None."""
    return None if epoch is None else format_datetime(datetime.fromtimestamp(int(epoch), UTC))


def is_e164(number: str) -> bool:
    return E164.fullmatch(number) is not None


def is_plausible(number: str) -> bool:
    """False for a number of the North American plan that cannot exist."""
    return not number.startswith("+1") or NANP.fullmatch(number) is not None


def is_premium(number: str) -> bool:
    return PREMIUM.fullmatch(number) is not None


def display(number: str) -> str:
    """How the provider formats a number for reading: `(602) 555-0101`; others stay as they are."""
    if NANP.fullmatch(number):
        return f"({number[2:5]}) {number[5:8]}-{number[8:]}"
    return number


def mask(number: str) -> str:
    """For logs: the start and the last two digits, the rest hidden."""
    return f"{number[:5]}***{number[-2:]}" if len(number) > 8 else "***"
