"""Ask an OSRM-compatible server how long technicians drive to a job.

    load(positions_of_technicians, position_of_job)  # asks the server; outside any transaction
    known_s(position_of_technician, position_of_job)  # from memory

OSRM_URL names the server. Without it, and while it hangs, fails or gives a wrong answer, distances are straight
lines. One request asks for all technicians of a ranking. After a failure nobody waits for the server: a thread of
this process asks it now and then until it answers.
"""

from __future__ import annotations

import asyncio
import json
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import structlog
from django.conf import settings
from django.db import connection

from dispatch.core.circuit_breaker import CircuitBreaker

log = structlog.get_logger(__name__)

# Technicians in one request. The server's own default limit is 100 positions.
MAX_SOURCES = 60
# How many trips are remembered, and for how long (seconds).
MAX_KNOWN, KNOWN_S = 20_000, 900.0
# How long nobody asks a server that failed (seconds).
PAUSE_S = 30.0
# A longer drive, or a larger answer, is not believed.
MAX_DRIVE_S, MAX_ANSWER_BYTES = 7 * 86_400, 131_072
# Decimals of the degrees that are sent (about 1 m), and of those by which a trip is remembered (about 11 m).
SENT_DECIMALS, KNOWN_DECIMALS = 5, 4
PROBE_THREAD = "osrm-probe"


class Position(NamedTuple):
    """A position in WGS 84 degrees."""

    lat: float
    lng: float


class WrongAnswer(Exception):
    """The server answered, but not as an OSRM table service does."""


class NotRoutable(Exception):
    """The server works, but refuses these positions."""


_Trip = tuple[float, float, float, float]
# The drive in seconds (None: no route), and until when it is believed, by trip; the least recently used first.
_known: OrderedDict[_Trip, tuple[int | None, float]] = OrderedDict()
_lock = threading.Lock()
breaker = CircuitBreaker("osrm", PAUSE_S)


def is_configured() -> bool:
    """Return whether a server is configured."""
    return bool(settings.OSRM_URL)


def may_ask() -> bool:
    """Return whether `load` would ask the server now."""
    return is_configured() and not breaker.is_open


def known_s(origin: Position, destination: Position) -> int | None:
    """Return the drive in seconds if it is known. None: a straight line is all that is known."""
    if not is_configured():
        return None
    known = _find(_trip(origin, destination))
    return None if known is None else known[0]


def load(origins: Iterable[Position], destination: Position) -> None:
    """Ask the server for the drives that are not known. Raises nothing.

    Call it outside any transaction; inside one, it does nothing. After a failure it returns at once, and the
    server is asked in the background when the pause is over.
    """
    if not may_ask() or connection.in_atomic_block:
        return
    unknown = {_trip(origin, destination): origin for origin in origins}
    missing = [origin for trip, origin in unknown.items() if _find(trip) is None][:MAX_SOURCES]
    if not missing:
        return
    had_failed = not breaker.is_closed
    if not breaker.admit():
        return
    if had_failed:
        threading.Thread(target=_ask, args=(missing, destination), name=PROBE_THREAD, daemon=True).start()
    else:
        _ask(missing, destination)


def reset() -> None:
    """Forget all drives."""
    with _lock:
        _known.clear()


def _ask(origins: Sequence[Position], destination: Position) -> None:
    """Send one request, remember the drives, and report the result to the circuit breaker."""
    try:
        durations = asyncio.run(_request_durations(origins, destination))
    except NotRoutable as refusal:
        breaker.record_success()
        log.warning("road_times_refused", error=str(refusal))
        return
    except Exception as error:
        breaker.record_failure(error)
        log.warning("road_times_failed", error=f"{type(error).__name__}: {error}"[:200])
        return
    breaker.record_success()
    until = time.monotonic() + KNOWN_S
    with _lock:
        for origin, seconds in zip(origins, durations, strict=True):
            trip = _trip(origin, destination)
            _known[trip] = seconds, until
            _known.move_to_end(trip)
        while len(_known) > MAX_KNOWN:
            _known.popitem(last=False)


async def _request_durations(origins: Sequence[Position], destination: Position) -> list[int | None]:
    """Return the drive from each origin in seconds, as the server's table service says."""
    from dispatch.core.http.client import HttpClient  # takes a quarter of a second to import

    points = ";".join(
        f"{point.lng:.{SENT_DECIMALS}f},{point.lat:.{SENT_DECIMALS}f}" for point in (destination, *origins)
    )
    sources = ";".join(str(nth) for nth in range(1, len(origins) + 1))
    url = f"{settings.OSRM_URL.rstrip('/')}/table/v1/driving/{points}"
    query = f"?sources={sources}&destinations=0&annotations=duration&generate_hints=false"
    async with HttpClient(proxy="") as client:
        answer = await client.get(
            url + query, {}, settings.OSRM_TIMEOUT_S, allow_private=True, kept_bytes=MAX_ANSWER_BYTES
        )
    if answer.truncated:
        raise WrongAnswer(f"more than {MAX_ANSWER_BYTES} bytes")
    return read_durations(answer.status, answer.body_start, len(origins))


def read_durations(status: int, body: bytes, count: int) -> list[int | None]:
    """Return the `count` durations of a table answer in seconds; None where the server found no route.

    Raises WrongAnswer, and NotRoutable if the server refuses the positions.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        raise WrongAnswer(f"status {status} without JSON") from None
    code = answer.get("code") if isinstance(answer, dict) else None
    if not isinstance(code, str):
        raise WrongAnswer(f"status {status} without a code")
    if code != "Ok":
        if status == 400 and code in ("NoSegment", "NoTable"):
            raise NotRoutable(code)
        raise WrongAnswer(f"status {status}, code {code[:40]}")
    rows = answer.get("durations")
    if status != 200 or not isinstance(rows, list) or len(rows) != count:
        raise WrongAnswer(f"status {status}, not {count} durations")
    return [_read_duration(row) for row in rows]


def _read_duration(row: object) -> int | None:
    if not isinstance(row, list) or len(row) != 1:
        raise WrongAnswer("not one duration for each position")
    seconds = row[0]
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        raise WrongAnswer("a duration is not a number")
    if not math.isfinite(seconds) or not 0 <= seconds <= MAX_DRIVE_S:
        raise WrongAnswer("a duration is out of range")
    return round(seconds)


def _trip(origin: Position, destination: Position) -> _Trip:
    lat, lng, to_lat, to_lng = (round(degrees, KNOWN_DECIMALS) for degrees in (*origin, *destination))
    return lat, lng, to_lat, to_lng


def _find(trip: _Trip) -> tuple[int | None, float] | None:
    with _lock:
        found = _known.get(trip)
        if found is None or found[1] <= time.monotonic():
            return None
        _known.move_to_end(trip)
        return found
