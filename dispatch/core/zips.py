"""The ZIP codes of the United States, offline."""

from __future__ import annotations

from functools import lru_cache

# Where five digits are a ZIP code. Elsewhere (10115 is Berlin as well as New York) they may be anything.
REGIONS = frozenset({"US", "PR", "VI", "GU", "AS", "MP"})


@lru_cache(maxsize=4096)
def zip_position(code: str) -> tuple[float, float, str] | None:
    """Latitude, longitude and state of a ZIP code; None for one that does not exist or has no place (military).
    Raises ValueError or TypeError for what is no ZIP code at all."""
    import zipcodes  # its data is loaded at the first question

    for entry in zipcodes.matching(code):
        lat, lng = float(entry["lat"] or 0), float(entry["long"] or 0)
        if (lat, lng) != (0, 0):
            return lat, lng, entry["state"]
    return None
