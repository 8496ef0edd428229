"""No request under 1 MB costs more than a second of CPU or 100 MB, and none is a server error.

Every URL, every parameter that its view reads, with all hostile values; as Admin, Dispatcher and stranger.
The parts run independently: `make soak ARGS="tests/soak/test_hostile_requests.py -k 'dispatcher and API'"`.
"""

from __future__ import annotations

import gc
import logging
import time
from typing import Any

import pytest

from accounts.auth.throttling import parse_rate
from dispatch.console.portal import session
from dispatch.core.events import SYSTEM
from dispatch.outbox.models import Endpoint
from dispatch.outbox.services import portal
from tests.support.hostile_requests import AREAS, ODD, SHAPES, VALUES, Walk, area_of
from tests.support.tenants import Tenant, ours, world  # noqa: F401

pytestmark = [pytest.mark.soak, pytest.mark.django_db, pytest.mark.timeout(7200)]
log = logging.getLogger(__name__)


@pytest.fixture(autouse=True)
def _unlimited(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rates = dict.fromkeys(settings.REST_FRAMEWORK["DEFAULT_THROTTLE_RATES"], "1000000/s")
    settings.REST_FRAMEWORK = {**settings.REST_FRAMEWORK, "DEFAULT_THROTTLE_RATES": rates}
    settings.PUBLIC_FORM_RATE = settings.LINK_GUESS_RATE = "1000000/s"
    for name in ("READS", "WRITES", "STRANGERS"):
        monkeypatch.setattr(session, name, parse_rate("1000000/s"))


@pytest.mark.parametrize("area", AREAS)
@pytest.mark.parametrize("role", ["stranger", "admin", "dispatcher"])
def test_no_request_is_expensive_or_a_server_error(ours: Tenant, role: str, area: str) -> None:  # noqa: F811
    walk = Walk(ours, None if role == "stranger" else getattr(ours, role))
    _walk(walk, role, [address for address in walk.addresses() if area_of(address) == area])
    assert walk.send("GET", "/api/v1/me/").status == (401 if role == "stranger" else 200), "still signed in"


def test_no_request_of_a_receiver_is_expensive_or_a_server_error(ours: Tenant) -> None:  # noqa: F811
    link, code = portal.create_link(ours.organization, actor=SYSTEM, endpoint=ours.row(Endpoint))
    _, key = portal.open_link(link.uid, code)
    walk = Walk(ours, portal=(link.uid, key))
    home = f"/portal/{link.uid}/"
    _walk(walk, "receiver", [address for address in walk.addresses() if address.startswith(home)])
    assert walk.send("GET", home).status == 302, "still in its session"


def _walk(walk: Walk, role: str, addresses: list[str]) -> None:
    assert addresses
    gc.collect()
    gc.freeze()  # otherwise collections of the tests' objects count as cost of a request
    for address in addresses:
        begun, known = time.monotonic(), len(walk.problems)
        _try_everything(walk, address)
        log.info("%s %s: %s requests, %.0f s, slowest %.2f s (%s), largest %s MiB (%s) %s", role, address[:100],
                 walk.tried, time.monotonic() - begun, *walk.slowest, walk.largest[0] // 2**20, walk.largest[1],
                 walk.problems[known:] or "")  # fmt: skip
    assert walk.tried > 10 * len(addresses)
    assert not walk.problems, "\n".join(walk.problems)


def _try_everything(walk: Walk, address: str) -> None:
    of_get, _, get_refused = walk.names("GET", address)
    of_post, in_body, post_refused = walk.names("POST", address)
    in_query = of_get | of_post
    walk.try_queries(address, in_query, SHAPES if get_refused else VALUES)
    walk.try_odd_values(address, in_query, ODD)
    values = SHAPES if post_refused else VALUES
    walk.try_bodies("POST", address, in_query | in_body, values)
    walk.try_odd_bodies("POST", address, in_body, ODD)
    if address.startswith("/api/"):
        for method in ("POST", "PATCH"):
            walk.try_json(method, address, in_query | in_body, VALUES)
            walk.try_odd_bodies(method, address, in_body, ODD)
