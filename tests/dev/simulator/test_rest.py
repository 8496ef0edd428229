"""The REST API as the official client sees it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pytest
import requests
from twilio.base.exceptions import TwilioRestException

from tests.phones import ACCOUNT_SID, AUTH_TOKEN, Simulator, answer
from tests.support.waiting import PATIENCE

from .conftest import ANN, BOB, US, Caller
from .server import OurServer


def test_a_created_call_reads_like_one_of_the_provider(sim: Simulator, ours: OurServer) -> None:
    call = sim.client().calls.create(to=ANN, from_=US, url=ours.base + "/voice", timeout=30)
    assert re.fullmatch(r"CA[0-9a-f]{32}", call.sid)
    assert (call.status, call.direction, call.api_version) == ("queued", "outbound-api", "2010-04-01")
    assert (call.to, call._from, call.to_formatted) == (ANN, US, "(602) 555-0101")
    assert (call.price, call.price_unit, call.duration, call.answered_by) == (None, "USD", None, None)
    assert call.account_sid == ACCOUNT_SID
    assert timedelta(seconds=-1) < datetime.now(UTC) - call.date_created < timedelta(seconds=PATIENCE)
    assert call.subresource_uris["recordings"].endswith(f"/Calls/{call.sid}/Recordings.json")
    assert call.uri == f"/2010-04-01/Accounts/{ACCOUNT_SID}/Calls/{call.sid}.json"


def test_a_finished_call_is_fetched_with_its_end_and_duration(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(answer(press="1"))
    sid = place().ended("completed").sid
    call = sim.client().calls(sid).fetch()
    assert call.status == "completed"
    assert int(call.duration) >= 2
    assert call.start_time <= call.end_time


def test_calls_are_listed_newest_first_and_page_by_page(sim: Simulator, place: Caller) -> None:
    made = [place(ANN).sid for _ in range(7)]
    other = place(BOB).sid
    client = sim.client()
    assert [c.sid for c in client.calls.list(to=ANN, page_size=3)] == made[::-1]
    assert [c.sid for c in client.calls.list(from_=US)] == [other, *made[::-1]]
    assert [c.sid for c in client.calls.list(to=ANN, from_="+16025550999")] == []
    assert len(client.calls.list(to=ANN, limit=2)) == 2
    first = client.calls.page(to=ANN, page_size=3)
    latest = place(ANN).sid
    assert latest not in [c.sid for c in first.next_page()], "a new call must not move the pages"


def test_the_list_filters_by_status_and_start(sim: Simulator, place: Caller) -> None:
    sim.phone(ANN).will(answer(press="1"))
    done = place(ANN).ended("completed").sid
    open_ = place(BOB).sid
    client = sim.client()
    assert [c.sid for c in client.calls.list(status="completed")] == [done]
    sim.phone(BOB).rings()
    assert [c.sid for c in client.calls.list(status="ringing")] == [open_]
    past, future = datetime.now(UTC) - timedelta(hours=1), datetime.now(UTC) + timedelta(hours=1)
    assert len(client.calls.list(start_time_after=past)) == 2
    assert client.calls.list(start_time_after=future) == []


@pytest.mark.parametrize(("sid", "token"), [(ACCOUNT_SID, "wrong"), ("AC" + "0" * 32, AUTH_TOKEN)])
def test_wrong_credentials_are_refused(sim: Simulator, ours: OurServer, sid: str, token: str) -> None:
    with pytest.raises(TwilioRestException) as caught:
        sim.client(sid, token).calls.create(to=ANN, from_=US, url=ours.base + "/voice")
    assert (caught.value.status, caught.value.code) == (401, 20003)
    assert sim.calls() == []


def test_one_account_does_not_see_the_calls_of_another(sim: Simulator, place: Caller) -> None:
    other = {"sid": "AC" + "b2".rjust(32, "0"), "auth_token": "other", "owns_any_number": True}
    sim.request("PUT", "/control/accounts", json=other)
    call = place()
    stranger = sim.client(other["sid"], "other")
    assert stranger.calls.list() == []
    with pytest.raises(TwilioRestException) as caught:
        stranger.calls(call.sid).fetch()
    assert (caught.value.status, caught.value.code) == (404, 20404)


def test_an_error_has_the_provider_s_form(sim: Simulator) -> None:
    url = f"{sim.base_url}/2010-04-01/Accounts/{ACCOUNT_SID}/Calls/CA{'0' * 32}.json"
    answer_ = requests.get(url, auth=(ACCOUNT_SID, AUTH_TOKEN), timeout=60)
    body = answer_.json()
    assert answer_.status_code == 404
    assert set(body) == {"code", "message", "more_info", "status"}
    assert (body["code"], body["status"]) == (20404, 404)
    assert body["more_info"] == "https://www.twilio.com/docs/errors/20404"


def test_the_account_can_be_fetched(sim: Simulator) -> None:
    assert sim.client().api.accounts(ACCOUNT_SID).fetch().status == "active"
