"""No request under 1 MB costs more than a second of CPU or 100 MB, and none is a server error.

Every URL, every parameter that its view reads, with all hostile values; as Admin, Dispatcher and stranger.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.hostile_requests import ODD, VALUES, Walk
from tests.support.tenants import Tenant, ours, world  # noqa: F401

pytestmark = [pytest.mark.soak, pytest.mark.django_db, pytest.mark.timeout(7200)]


@pytest.fixture(autouse=True)
def _unlimited(settings: Any) -> None:
    rates = dict.fromkeys(settings.REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"], "1000000/s")
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": rates}
    settings.PUBLIC_FORM_RATE = settings.LINK_GUESS_RATE = "1000000/s"


@pytest.mark.parametrize("role", ["admin", "dispatcher", "stranger"])
def test_no_request_is_expensive_or_a_server_error(ours: Tenant, role: str) -> None:  # noqa: F811
    walk = Walk(ours, None if role == "stranger" else getattr(ours, role))
    for address in walk.addresses():
        read = walk.names("GET", address) | walk.names("POST", address)
        walk.try_queries(address, read, VALUES)
        walk.try_odd_values(address, read, ODD)
        walk.try_bodies("POST", address, read, VALUES)
        if address.startswith("/api/"):
            for method in ("POST", "PATCH"):
                walk.try_json(method, address, read, VALUES)
    assert walk.tried > 1000
    assert walk.send("GET", "/api/v1/me/").status == (401 if role == "stranger" else 200), "still signed in"
    assert not walk.problems, "\n".join(walk.problems)
