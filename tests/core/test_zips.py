"""ZIP codes are read without the library's own list of all entries, which never leaves memory."""

from __future__ import annotations

import asyncio

import pytest
import zipcodes

from dispatch.asgi import lifespan
from dispatch.core.zips import iterate_entries, zip_position
from dispatch.leads.rules import geography
from dispatch.technicians import map_outline


def test_entries_come_in_the_order_of_their_codes() -> None:
    codes = [entry["zip_code"] for entry in iterate_entries()]
    assert len(codes) > 40_000
    assert codes == sorted(codes)


def test_maps_and_time_zones_do_not_keep_the_whole_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipcodes, "_zips_cache", None)
    towns, codes = map_outline._towns.__wrapped__()
    assert towns[0][0] == "New York"
    assert len(codes) > 25_000
    assert "AZ" in geography._states_by_area.__wrapped__()["602"]
    assert geography._zip_cells.__wrapped__()[33, -113]
    assert zipcodes._zips_cache is None


def test_the_first_request_of_a_web_process_does_not_wait_for_them() -> None:
    zip_position.cache_clear()
    assert asyncio.run(start_up()) == ["lifespan.startup.complete"]
    assert zip_position.cache_info().currsize == 1


async def start_up() -> list[str]:
    """Run the web process's startup, and return what it told the server."""
    told: list[str] = []
    signals = asyncio.Queue[dict[str, str]]()
    signals.put_nowait({"type": "lifespan.startup"})

    async def send(message: dict[str, str]) -> None:
        told.append(message["type"])
        process.cancel()

    process = asyncio.create_task(lifespan({}, signals.get, send))
    await asyncio.wait([process])
    return told
