"""Where a submission is: its own coordinates, else its ZIP code (offline), else the configured geocoder.

A wrong place is worse than none: somebody would drive there. What is doubtful is not guessed but left to the
geocoder or to a dispatcher, with the reason in words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings

from accounts.models import Organization
from dispatch.core import zips
from dispatch.jobs.rules.states import STATES

log = structlog.get_logger(__name__)

GEOCODER_TIMEOUT_S = 5.0

_CODES = {name.lower(): code for code, name in STATES.items()}
_ZIP = re.compile(r"(?<![\w#-])(\d{5})(?:-\d{4})?(?![\w-])")
# A state right before the digits: "AZ 85004", ", az, 85004", "Arizona 85004".
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
class Place:
    """A position in WGS 84 degrees; `source` is `form`, `zip` or the geocoder's name."""

    lat: float
    lng: float
    source: str


@dataclass(frozen=True)
class ZipGuess:
    """Five digits of an address that may be its ZIP code, and the state that the address names before them."""

    code: str
    state: str


def locate(*, lat: float | None, lng: float | None, address: str, organization: Organization) -> Place | None:
    """The place, or None when it cannot be found, for whatever reason (logged; `find` gives it).

    May wait for a geocoder: call it outside any transaction."""
    return find(lat=lat, lng=lng, address=address, organization=organization)[0]


def find(
    *, lat: float | None, lng: float | None, address: str, organization: Organization
) -> tuple[Place | None, str]:
    """As `locate`, with the reason in words ("" when found). Raises nothing."""
    if lat is not None and lng is not None:
        if -90 <= lat <= 90 and -180 <= lng <= 180:
            return Place(lat, lng, "form"), ""
        why = "The coordinates are out of range."
    elif not (address := address.strip()):
        why = "There are neither coordinates nor an address."
    else:
        place, why = _by_zip(address, organization)
        if place is None and settings.GEOCODER:
            place, why = _by_geocoder(address)
        if place is not None:
            return place, ""
    log.info("place_not_found", organization=organization.pk, reason=why)
    return None, why


def warm() -> None:
    """Loads the ZIP codes (about 0.4 s and 40 MB, once per process); a worker calls it before its first job."""
    zips.zip_position("10001")


def zip_guesses(address: str) -> list[ZipGuess]:
    """What may be the ZIP code in an address, likeliest first: after a state's name, at the end, elsewhere.

    House, flat and road numbers are left out."""
    ranked: list[tuple[int, int, ZipGuess]] = []
    for found in _ZIP.finditer(address):
        before, after = address[: found.start()], address[found.end() :]
        state = _state_before(before)
        if state:
            rank = 0
        elif _NOT_A_ZIP_AFTER.search(before) or (_STARTS_PART.search(before) and re.match(r"\s*[^\W\d]", after)):
            continue
        else:
            rank = 1 if _COUNTRY_AFTER.match(after) else 2
        ranked.append((rank, -found.start(), ZipGuess(found[1], state)))
    return [guess for _, _, guess in sorted(ranked, key=lambda item: item[:2])]


def _state_before(before: str) -> str:
    found = _STATE_BEFORE.search(before)
    if not found:
        return ""
    upper, other, name = found.groups()
    code = _CODES[name.lower()] if name else (upper or other).upper()
    return code if code in STATES else ""


def _by_zip(address: str, organization: Organization) -> tuple[Place | None, str]:
    if organization.default_region not in zips.REGIONS:
        return None, "The address cannot be looked up: no geocoder is configured."
    why = "The address has no ZIP code."
    try:
        for guess in zip_guesses(address):
            position = zips.zip_position(guess.code)
            if position is None:
                why = f"The ZIP code {guess.code} is not known."
            elif guess.state and guess.state != position[2]:
                why = f"The ZIP code {guess.code} is not in {STATES[guess.state]}."
            else:
                return Place(position[0], position[1], "zip"), ""
            if guess.state:
                break  # this was the ZIP code; other digits are not
    except Exception:
        log.exception("zip_lookup_failed")
        why = "The ZIP code could not be looked up."
    return None, why


def _by_geocoder(address: str) -> tuple[Place | None, str]:
    try:
        found = _geocoder(settings.GEOCODER).geocode(address)
    except Exception as error:
        log.warning("geocoder_failed", geocoder=settings.GEOCODER, error=type(error).__name__)
        return None, f"The geocoder {settings.GEOCODER} could not be asked ({type(error).__name__})."
    if found is None:
        return None, f"The geocoder {settings.GEOCODER} does not know the address."
    return Place(float(found.latitude), float(found.longitude), settings.GEOCODER), ""


def _geocoder(name: str) -> Any:
    from geopy.geocoders import get_geocoder_for_service

    return get_geocoder_for_service(name)(**{"timeout": GEOCODER_TIMEOUT_S, **settings.GEOCODER_CONFIG})
