"""Drives by road: what is asked of an OSRM server, what is remembered, and how long a failing one holds us up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.core.checks import run_checks
from django.db import transaction

from dispatch.technicians import road_times, rules
from dispatch.technicians.road_times import NotRoutable, Position, WrongAnswer
from tests.harness.osrm import Osrm, osrm_server
from tests.support.waiting import PATIENCE, wait_until

JOB = Position(33.45, -112.07)
ANN, BOB = Position(33.46, -112.07), Position(33.47, -112.07)


@pytest.fixture
def osrm(settings, monkeypatch):
    settings.OSRM_TIMEOUT_S = PATIENCE
    monkeypatch.setattr(road_times.breaker, "pause_s", 3600.0)
    with osrm_server(settings) as server:
        server.put(ANN.lat, 12)
        server.put(BOB.lat, 20)
        yield server


def drives() -> list[int | None]:
    return [road_times.known_s(one, JOB) for one in (ANN, BOB)]


def test_one_request_asks_for_all_drives_and_they_are_remembered(osrm: Osrm):
    road_times.load([ANN, BOB], JOB)
    assert osrm.requests == [[ANN, BOB]]
    assert drives() == [720, 1200]
    road_times.load([ANN, BOB], JOB)
    assert len(osrm.requests) == 1
    near_ann = Position(ANN.lat + 0.00002, ANN.lng)
    assert road_times.known_s(near_ann, JOB) == 720, "two meters are no move"
    assert road_times.known_s(Position(ANN.lat + 0.005, ANN.lng), JOB) is None


def test_only_unknown_drives_are_asked_for(osrm: Osrm):
    road_times.load([ANN], JOB)
    road_times.load([ANN, BOB], JOB)
    assert osrm.requests == [[ANN], [BOB]]


def test_no_route_is_remembered_like_a_drive(osrm: Osrm):
    osrm.put(ANN.lat, None)
    road_times.load([ANN, BOB], JOB)
    assert drives() == [None, 1200]
    road_times.load([ANN, BOB], JOB)
    assert len(osrm.requests) == 1
    assert road_times.breaker.is_closed


def test_request_and_memory_are_bounded(osrm: Osrm, monkeypatch):
    monkeypatch.setattr(road_times, "MAX_KNOWN", 70)
    crowd = [Position(33 + nth / 1000, -112.0) for nth in range(100)]
    road_times.load(crowd, JOB)
    road_times.load([ANN], JOB)
    assert [len(asked) for asked in osrm.requests] == [road_times.MAX_SOURCES, 1]
    road_times.load(crowd, JOB)
    assert len(road_times._known) == 70


def test_old_drives_are_asked_for_again(osrm: Osrm, monkeypatch):
    monkeypatch.setattr(road_times, "KNOWN_S", -1.0)
    road_times.load([ANN], JOB)
    assert drives() == [None, None]
    road_times.load([ANN], JOB)
    assert len(osrm.requests) == 2


def test_nothing_is_asked_without_a_server(osrm: Osrm, settings):
    road_times.load([ANN], JOB)
    settings.OSRM_URL = ""
    road_times.load([ANN, BOB], JOB)
    assert drives() == [None, None]
    assert len(osrm.requests) == 1


@pytest.mark.django_db
def test_nothing_is_asked_within_a_transaction(osrm: Osrm):
    with transaction.atomic():
        road_times.load([ANN], JOB)
    assert osrm.requests == []


def fails(osrm: Osrm) -> None:
    """The first request fails, and no other is sent: nobody waits again."""
    road_times.load([ANN, BOB], JOB)
    assert drives() == [None, None]
    for _ in range(5):
        road_times.load([ANN, BOB], JOB)
    assert len(osrm.requests) == 1
    assert not road_times.may_ask()


def test_hanging_server_is_waited_for_once(osrm: Osrm, settings):
    settings.OSRM_TIMEOUT_S = 0.3
    osrm.mode = "hang"
    road_times.load([ANN, BOB], JOB)
    wait_until(lambda: osrm.requests)  # it may have hung before it was read
    for _ in range(5):
        road_times.load([ANN, BOB], JOB)
    assert drives() == [None, None]
    assert len(osrm.requests) == 1


@pytest.mark.parametrize("mode", ["cut", "broken", "garbage"])
def test_broken_server_is_left_alone(osrm: Osrm, mode: str):
    osrm.mode = mode
    fails(osrm)


def test_absent_server_is_left_alone(osrm: Osrm, settings):
    settings.OSRM_URL = "http://127.0.0.1:9"
    road_times.load([ANN], JOB)
    assert not road_times.may_ask()


def test_failed_server_is_probed_in_the_background(osrm: Osrm, monkeypatch):
    osrm.mode = "broken"
    road_times.load([ANN], JOB)
    monkeypatch.setattr(road_times.breaker, "pause_s", 0.0)
    road_times.breaker.record_failure()  # the pause is over
    osrm.mode = "hang"
    road_times.load([ANN], JOB)  # returns, although the probe hangs
    wait_until(lambda: len(osrm.requests) == 2)
    osrm.mode = "ok"
    road_times.breaker.release_probe()
    road_times.load([ANN, BOB], JOB)
    wait_until(lambda: drives() == [720, 1200])
    wait_until(lambda: road_times.breaker.is_closed)


def test_refused_positions_do_not_stop_requests_for_others(osrm: Osrm):
    osrm.mode = "refuse"
    road_times.load([ANN], JOB)
    assert road_times.breaker.is_closed
    osrm.mode = "ok"
    road_times.load([BOB], JOB)
    assert drives() == [None, 1200]


def durations(*rows: Any, code: Any = "Ok") -> bytes:
    return json.dumps({"code": code, "durations": list(rows)}).encode()


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"Ok"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"code": "Ok"}',
        b'{"code": "Ok", "durations": null}',
        b'{"code": "Ok", "durations": [[NaN], [1]]}',
        b'{"code": "Ok", "durations": [[1e999], [1]]}',
        b'{"durations": [[1], [2]]}',
        durations([1], [2], code=7),
        durations([1], [2], code="InvalidQuery"),
        durations([1]),
        durations([1], [2], [3]),
        durations([1], [2, 3]),
        durations([1], []),
        durations([1], 2),
        durations([1], None),
        durations([1], ["2"]),
        durations([1], [True]),
        durations([1], [-1]),
        durations([1], [1e12]),
    ],
)
def test_wrong_answers_are_not_believed(body: bytes):
    with pytest.raises(WrongAnswer):
        road_times.read_durations(200, body, 2)


def test_answers_are_read_with_their_status():
    good = durations([61.4], [None])
    assert road_times.read_durations(200, good, 2) == [61, None]
    with pytest.raises(WrongAnswer):
        road_times.read_durations(500, good, 2)
    with pytest.raises(NotRoutable):
        road_times.read_durations(400, b'{"code": "NoSegment"}', 2)
    with pytest.raises(WrongAnswer):
        road_times.read_durations(400, b'{"code": "TooBig"}', 2)


def test_oversized_answer_is_a_failure(osrm: Osrm):
    osrm.mode, osrm.garbage = "garbage", durations(*([1.0] for _ in range(50_000)))
    fails(osrm)


def test_drives_in_words():
    words = {
        0: "1 min by road",
        20: "1 min by road",
        720: "12 min by road",
        725: "12 min by road",
        3590: "1 h by road",
        3900: "1 h 5 min by road",
    }
    assert {seconds: rules.road_words(seconds) for seconds in words} == words
    assert rules.distance_words(6760, "mi") == "4.2 mi"


@pytest.mark.parametrize(
    ("url", "seconds", "said"),
    [
        ("", 0.0, []),
        ("http://osrm:5000", 1.0, []),
        ("https://example.com/osrm/", 10.0, []),
        ("osrm:5000", 1.0, ["OSRM_URL can't be used"]),
        ("ftp://osrm", 1.0, ["OSRM_URL can't be used"]),
        ("http://me:secret@osrm:5000", 1.0, ["OSRM_URL can't be used"]),
        ("http://osrm:6379", 1.0, ["OSRM_URL can't be used"]),
        ("http://osrm:5000/table/v1/driving", 1.0, ["names a service"]),
        ("http://osrm:5000?key=1", 1.0, ["has a query"]),
        ("http://osrm:5000", 0.0, ["OSRM_TIMEOUT_S must be"]),
        ("http://osrm:5000", float("nan"), ["OSRM_TIMEOUT_S must be"]),
        ("http://osrm:5000", 60.0, ["OSRM_TIMEOUT_S must be"]),
    ],
)
def test_bad_settings_are_reported(settings, url: str, seconds: float, said: list[str]):
    settings.OSRM_URL, settings.OSRM_TIMEOUT_S = url, seconds
    faults = [str(fault.msg) for fault in run_checks() if (fault.id or "").startswith("dispatch.E12")]
    assert len(faults) == len(said)
    assert all(part in fault and "secret" not in fault for part, fault in zip(said, faults, strict=True))
