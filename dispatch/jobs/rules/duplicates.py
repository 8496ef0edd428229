"""Recognize the same address in different spellings."""

import re
import unicodedata

MAX_KEY_LENGTH = 120
_ABBREVIATIONS = {
    "street": "st", "avenue": "ave", "av": "ave", "road": "rd", "boulevard": "blvd", "drive": "dr", "lane": "ln",
    "court": "ct", "place": "pl", "parkway": "pkwy", "highway": "hwy", "circle": "cir", "terrace": "ter",
    "north": "n", "south": "s", "east": "e", "west": "w", "apartment": "apt", "suite": "ste", "unit": "apt",
}  # fmt: skip
_STATE_AND_ZIP = re.compile(r"\b(?:[a-z]{2} )?(\d{5})(?: \d{4})?$")


def on_one_line(address: str) -> str:
    """Return the address without line breaks and repeated spaces, as forms read it."""
    return " ".join(address.split())


def address_key(address: str) -> str:
    """Return a key that is equal for spellings of one address, or "" if it names no house.

    "200 West Washington Street, Phoenix, AZ 85003" and "200 W. Washington St., Phoenix 85003" have the same key.
    """
    plain = unicodedata.normalize("NFKD", address).encode("ascii", "ignore").decode() or address
    words = re.findall(r"\w+", plain.casefold())
    flat = " ".join(_ABBREVIATIONS.get(word, word) for word in words)
    street = _STATE_AND_ZIP.sub("", flat).strip()
    if not re.search(r"\d", street) or not re.search(r"[^\W\d_]", street):
        return ""
    return _STATE_AND_ZIP.sub(r"\1", flat)[:MAX_KEY_LENGTH]
