"""Geocode a submission: its coordinates, else its ZIP code (offline), else the configured geocoder.

A wrong location is worse than none, because a technician would drive there. A doubtful address is left to the
geocoder or to a dispatcher, with the reason, instead of being guessed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings

from accounts.models import Organization
from dispatch.core import zips
from dispatch.core.stored_texts import mark_stored
from dispatch.jobs.rules.states import STATES

log = structlog.get_logger(__name__)

GEOCODER_TIMEOUT_S = 5.0

# Why a place was not found, in the log and on pages.
OUT_OF_RANGE = mark_stored("The coordinates are out of range.")
NOTHING_GIVEN = mark_stored("No address or coordinates were given.")
NO_GEOCODER = mark_stored("The address can't be looked up: no geocoder is configured.")
NO_ZIP_CODE = mark_stored("The address has no ZIP code.")
UNKNOWN_ZIP_CODE = mark_stored("ZIP code {code} is unknown.")
WRONG_STATE = mark_stored("ZIP code {code} is not in {state}.")
LOOKUP_FAILED = mark_stored("The ZIP code could not be looked up.")
GEOCODER_FAILED = mark_stored("The geocoder {geocoder} failed ({fault}).")
NOT_FOUND = mark_stored("The geocoder {geocoder} did not find the address.")

_CODES = {name.lower(): code for code, name in STATES.items()}
_ZIP = re.compile(r"(?<![\w#-])(\d{5})(?:-\d{4})?(?![\w-])")
# A state directly before the digits: "AZ 85004", ", az, 85004", "Arizona 85004".
_NAMES = "|".join(sorted(STATES.values(), key=len, reverse=True))
_STATE_BEFORE = re.compile(rf"(?:\b([A-Z]{{2}})|,\s*([a-z]{{2}}|[A-Z][a-z])|\b({_NAMES}))\.?[\s,]+$")
_COUNTRY_AFTER = re.compile(r"^[\s,.]*(?:u\.?s\.?a?\.?|united states(?: of america)?)?[\s,.]*$", re.IGNORECASE)
_NOT_A_ZIP_AFTER = re.compile(
    r"(?:\b(?:apt|apartment|unit|suite|ste|box|room|rm|bldg|building|lot|no|route|rte|rt|hwy|highway|road|km|mile)"
    r"\.?|#)\s*$",
    re.IGNORECASE,
)
_STARTS_PART = re.compile(r"(?:^|[,;\n])\s*$")


@dataclass(frozen=True)
class Location:
    """A position in WGS 84 degrees; `source` is `form`, `zip` or the geocoder's name."""

    lat: float
    lng: float
    source: str


@dataclass(frozen=True)
class ZipGuess:
    """Five digits of an address that may be its ZIP code, and the state named before them."""

    code: str
    state: str


def geocode(*, lat: float | None, lng: float | None, address: str, organization: Organization) -> Location | None:
    """Return the location, or None if it can't be found. The reason is logged; `geocode_with_reason` returns it.

    Call it outside any transaction: it may wait for a geocoder.
    """
    return geocode_with_reason(lat=lat, lng=lng, address=address, organization=organization)[0]


def geocode_with_reason(
    *, lat: float | None, lng: float | None, address: str, organization: Organization
) -> tuple[Location | None, str]:
    """Return the location as `geocode` does, with the reason if not found, else "". Raises nothing."""
    if lat is not None and lng is not None:
        if -90 <= lat <= 90 and -180 <= lng <= 180:
            return Location(lat, lng, "form"), ""
        why = OUT_OF_RANGE
    elif not (address := address.strip()):
        why = NOTHING_GIVEN
    else:
        place, why = _locate_by_zip(address, organization)
        if place is None and settings.GEOCODER:
            place, why = _locate_by_geocoder(address)
        if place is not None:
            return place, ""
    log.info("place_not_found", organization=organization.pk, reason=why)
    return None, why


def zip_guesses(address: str) -> list[ZipGuess]:
    """Return possible ZIP codes of an address, likeliest first: after a state's name, at the end, elsewhere.

    House, apartment and road numbers are left out.
    """
    ranked: list[tuple[int, int, ZipGuess]] = []
    for match in _ZIP.finditer(address):
        before, after = address[: match.start()], address[match.end() :]
        state = _state_before(before)
        if state:
            rank = 0
        elif _NOT_A_ZIP_AFTER.search(before) or (_STARTS_PART.search(before) and re.match(r"\s*[^\W\d]", after)):
            continue
        else:
            rank = 1 if _COUNTRY_AFTER.match(after) else 2
        ranked.append((rank, -match.start(), ZipGuess(match[1], state)))
    return [guess for _, _, guess in sorted(ranked, key=lambda item: item[:2])]


def _state_before(before: str) -> str:
    match = _STATE_BEFORE.search(before)
    if not match:
        return ""
    upper, other, name = match.groups()
    code = _CODES[name.lower()] if name else (upper or other).upper()
    return code if code in STATES else ""


def _locate_by_zip(address: str, organization: Organization) -> tuple[Location | None, str]:
    if organization.default_region not in zips.REGIONS:
        return None, NO_GEOCODER
    why = NO_ZIP_CODE
    try:
        for guess in zip_guesses(address):
            position = zips.zip_position(guess.code)
            if position is None:
                why = UNKNOWN_ZIP_CODE.format(code=guess.code)
            elif guess.state and guess.state != position[2]:
                why = WRONG_STATE.format(code=guess.code, state=STATES[guess.state])
            else:
                return Location(position[0], position[1], "zip"), ""
            if guess.state:
                break  # this was the ZIP code, so no other digits are
    except Exception:
        log.exception("zip_lookup_failed")
        why = LOOKUP_FAILED
    return None, why


def _locate_by_geocoder(address: str) -> tuple[Location | None, str]:
    try:
        result = _geocoder(settings.GEOCODER).geocode(address)
    except Exception as error:
        log.warning("geocoder_failed", geocoder=settings.GEOCODER, error=type(error).__name__)
        return None, GEOCODER_FAILED.format(geocoder=settings.GEOCODER, fault=type(error).__name__)
    if result is None:
        return None, NOT_FOUND.format(geocoder=settings.GEOCODER)
    return Location(float(result.latitude), float(result.longitude), settings.GEOCODER), ""


def _geocoder(name: str) -> Any:
    from geopy.geocoders import get_geocoder_for_service

    return get_geocoder_for_service(name)(**{"timeout": GEOCODER_TIMEOUT_S, **settings.GEOCODER_CONFIG})
