"""Look up ZIP codes of the United States offline."""

from __future__ import annotations

from functools import lru_cache

# Regions in which five digits are a ZIP code. Elsewhere they have other meanings (10115: Berlin and New York).
REGIONS = frozenset({"US", "PR", "VI", "GU", "AS", "MP"})


@lru_cache(maxsize=4096)
def zip_position(code: str) -> tuple[float, float, str] | None:
    """Return latitude, longitude and state of a ZIP code.

    Return None if the code does not exist or has no location (military codes). Raises ValueError or TypeError if
    `code` is not a ZIP code.
    """
    import zipcodes  # its data is loaded on first use

    for entry in zipcodes.matching(code):
        lat, lng = float(entry["lat"] or 0), float(entry["long"] or 0)
        if (lat, lng) != (0, 0):
            return lat, lng, entry["state"]
    return None
