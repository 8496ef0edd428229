"""Look up ZIP codes of the United States offline."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

# Regions in which five digits are a ZIP code. Elsewhere they have other meanings (10115: Berlin and New York).
REGIONS = frozenset({"US", "PR", "VI", "GU", "AS", "MP"})

_CODE = re.compile(r"[0-9]{5}")


@lru_cache(maxsize=4096)
def zip_position(code: str) -> tuple[float, float, str] | None:
    """Return latitude, longitude and state of a ZIP code of five digits.

    Return None if `code` is anything else, does not exist or has no location (military codes).
    """
    import zipcodes  # its data is loaded on first use

    if not _CODE.fullmatch(code):  # the library raises for some of them
        return None
    for entry in zipcodes.matching(code):
        lat, lng = float(entry["lat"] or 0), float(entry["long"] or 0)
        if (lat, lng) != (0, 0):
            return lat, lng, entry["state"]
    return None


def load_zip_codes() -> None:
    """Load the ZIP codes: about 0.4 s and 40 MB, once per process.

    All threads of the process stand still meanwhile, so processes that locate addresses do it when they start.
    """
    zip_position("10001")


def iterate_entries() -> Iterator[dict[str, Any]]:
    """Yield the library's entries in the order of their codes.

    Its own list of all entries stays in memory for good, with 140 MiB.
    """
    import zipcodes

    for prefix in range(100):
        yield from zipcodes.similar_to(f"{prefix:02}")
