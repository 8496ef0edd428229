"""Define the rules of texts as pure functions: status order, keywords, choice of the number."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Sequence
from typing import TypeVar

from dispatch.core.accents import without_accents

# A status only moves to a higher rank. All end statuses have the same rank and are final.
RANK = {
    "created": 0,
    "requesting": 1,
    "unknown": 2,
    "submitted": 3,
    "sent": 4,
    "delivered": 9,
    "undelivered": 9,
    "failed": 9,
    "rejected": 9,
    "canceled": 9,
    "not_sent": 9,
    "received": 9,
}
ENDS = frozenset(status for status, rank in RANK.items() if rank == 9)

# Keywords that carriers define. Case does not matter; the keyword must be the only word of the text.
STOP = frozenset({"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "REVOKE", "OPTOUT"})
_ABOUT_JOBS = frozenset({"CANCEL", "END"})
# Spanish words for STOP, which the provider neither blocks nor confirms. CANCELAR may be about a job.
STOP_IN_SPANISH = frozenset({"ALTO", "PARAR", "DETENER", "BAJA"})
START = frozenset({"START", "UNSTOP", "INICIAR", "ALTA"})
# YES means START only after an opt-out; otherwise it answers a question.
YES = frozenset({"YES", "SI"})
HELP = frozenset({"HELP", "INFO", "AYUDA"})

MAX_LENGTH = 1600
_LINK_TOKEN = re.compile(r"(/[a-z]+/)[A-Za-z0-9_.:-]{30,}(/?)")

N = TypeVar("N")


def is_forward(current: str, new: str) -> bool:
    """Return whether a text may move from `current` to `new`."""
    return RANK[new] > RANK[current]


def keyword(body: str, opted_out: bool) -> str:
    """Return the keyword of a text: `stop`, `start`, `help`, or "" for any other text.

    With a number, CANCEL and END are about a job ("Cancel 12"). Accents don't matter.
    """
    word = re.sub(r"[^A-Z]", "", without_accents(body).strip().upper()) if len(body) < 40 else ""
    if word in _ABOUT_JOBS and re.search(r"\d", body):
        return ""
    if word in STOP or word in STOP_IN_SPANISH:
        return "stop"
    if word in START or (word in YES and opted_out):
        return "start"
    return "help" if word in HELP else ""


def mask_tokens(body: str) -> str:
    """Return a text with its signed links masked for display, because a link is a credential."""
    return _LINK_TOKEN.sub(r"\1…\2", body)


# GSM 03.38: characters that take one septet, and those that take two.
_GSM = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§"
    "¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
_GSM_EXTENDED = frozenset("^{}\\[~]|€\f")


def truncate(body: str) -> str:
    """Return the longest beginning of a text that the provider accepts. It counts UTF-16 units."""
    if len(body) * 2 <= MAX_LENGTH:
        return body
    units = body.encode("utf-16-le", errors="replace")[: MAX_LENGTH * 2]
    return units.decode("utf-16-le", errors="ignore")


def segments(body: str) -> int:
    """Return the number of messages that carry a text."""
    if all(char in _GSM or char in _GSM_EXTENDED for char in body):
        size, single, part = len(body) + sum(char in _GSM_EXTENDED for char in body), 160, 153
    else:
        size, single, part = len(body.encode("utf-16-le", errors="replace")) // 2, 70, 67
    return 1 if size <= single else -(-size // part)


def comparable(body: str) -> str:
    """Reduce a text to what providers do not change: they replace quotes, dashes, spaces and other symbols."""
    letters = "".join(char for char in unicodedata.normalize("NFKD", body) if char.isalnum())
    return letters.casefold() or body.strip()


def choose_number(phone: str, numbers: Sequence[N]) -> N:
    """Return one of the numbers for this phone: always the same one while `numbers` stay the same."""
    digest = hashlib.sha256(phone.encode()).digest()
    return numbers[int.from_bytes(digest[:4], "big") % len(numbers)]
