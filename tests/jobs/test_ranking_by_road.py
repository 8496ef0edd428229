"""With an OSRM server, technicians are called by their minutes by road, and the pages and the history say so."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.urls import reverse

from dispatch.core import clock
from dispatch.jobs import services, timeline
from dispatch.jobs.models import Candidate, Job
from dispatch.technicians import road_times
from dispatch.technicians.models import Technician
from tests.harness.jobs import KM, MARIA, Floor, started_job
from tests.harness.osrm import Osrm, osrm_server
from tests.phones import answer, manual
from tests.support import factories
from tests.support.waiting import PATIENCE


@pytest.fixture
def osrm(settings, monkeypatch):
    settings.OSRM_TIMEOUT_S = PATIENCE
    monkeypatch.setattr(road_times.breaker, "pause_s", 3600.0)
    with osrm_server(settings) as server:
        yield server


def drives(osrm: Osrm, technician: Technician, minutes: float | None) -> None:
    osrm.put(technician.lat, minutes)


def history(job: Job, kind: str) -> list[str]:
    return [entry.did for entry in timeline.load_timeline(job) if entry.kind == kind]


def reasons(job: Job) -> list[tuple[str, str, int | None]]:
    rows = Candidate.objects.filter(job=job).select_related("technician").order_by("rank")
    return [(row.technician.name, row.reason, row.travel_s) for row in rows]


def test_shorter_drive_is_called_first_and_the_history_says_why(floor: Floor, osrm: Osrm):
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=3)
    drives(osrm, ann, 30)
    drives(osrm, bob, 10)
    job = floor.started()
    assert floor.offers(job) == [("Bob", "pending")]
    assert reasons(job) == [("Bob", "10 min by road", 600), ("Ann", "30 min by road", 1800)]
    (found,) = history(job, "job.offering")
    assert found == "found 2 eligible technicians of 2 within 31 mi, ranked by minutes by road"
    assert history(job, "offer.made") == ["offered the job to Bob (attempt 1, 10 min by road)"]
    assert len(osrm.requests) == 1
    assert len(osrm.requests[0]) == 2


def test_technicians_without_a_drive_rank_by_the_straight_line(floor: Floor, osrm: Osrm):
    ann, bob, cid = floor.technician("Ann", km=1), floor.technician("Bob", km=3), floor.technician("Cid", km=2)
    drives(osrm, ann, None)
    drives(osrm, bob, 10)
    drives(osrm, cid, 20)
    job = floor.started()
    assert [name for name, *_ in reasons(job)] == ["Ann", "Bob", "Cid"]
    assert reasons(job)[0] == ("Ann", "0.6 mi", None)
    assert history(job, "job.offering")[0].endswith("ranked by minutes by road (2 of 3 known)")


def test_hanging_server_delays_one_ranking_by_one_timeout(floor: Floor, osrm: Osrm, settings):
    settings.OSRM_TIMEOUT_S = 0.3
    osrm.mode = "hang"
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=3)
    drives(osrm, ann, 30)
    drives(osrm, bob, 10)
    job = floor.started()
    assert floor.offers(job) == [("Ann", "pending")]
    assert reasons(job) == [("Ann", "0.6 mi", None), ("Bob", "1.9 mi", None)]
    assert "ranked by straight lines because no drives by road were known" in history(job, "job.offering")[0]
    other = floor.started(customer_phone=factories.phone(), address="1 Other St, Phoenix, AZ 85004")
    assert floor.offers(other) == [("Bob", "pending")]
    assert len(osrm.requests) <= 1


def test_moved_technician_is_not_described_by_the_former_drive(floor: Floor, osrm: Osrm):
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=2)
    drives(osrm, ann, 5)
    drives(osrm, bob, 10)
    floor.phone(ann).will(manual())
    job = floor.started()
    assert reasons(job)[1] == ("Bob", "10 min by road", 600)
    Technician.objects.filter(pk=bob.pk).update(lat=bob.lat + 3 * KM)
    floor.rings(ann).answer().press("2")
    floor.until(lambda: floor.offers(job)[1:] == [("Bob", "pending")])
    assert reasons(job)[1] == ("Bob", "3.1 mi", None)
    assert history(job, "offer.made")[1] == "offered the job to Bob (attempt 2)"


def test_drive_of_the_ranking_counts_in_other_processes(floor: Floor, osrm: Osrm):
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=2)
    drives(osrm, ann, 5)
    drives(osrm, bob, 10)
    floor.phone(ann).will(answer(press="2"))
    job = floor.started()
    road_times.reset()  # the next offer is made by another worker
    floor.until(lambda: floor.offers(job)[1:] == [("Bob", "pending")])
    assert reasons(job)[1] == ("Bob", "10 min by road", 600)
    assert len(osrm.requests) == 1


def test_wider_round_asks_for_the_new_technicians(floor: Floor, osrm: Osrm):
    floor.set_policy(rounds=2, radius_m=1500, radius_growth=200)
    ann, bob, cid = (floor.technician(name, km=km) for name, km in (("Ann", 1), ("Bob", 2), ("Cid", 3)))
    for one, minutes in ((ann, 5), (bob, 40), (cid, 20)):
        drives(osrm, one, minutes)
    floor.phone(ann).will(answer(press="2"))
    job = floor.started()
    floor.until(lambda: len(floor.offers(job)) == 2)
    assert floor.offers(job)[1] == ("Cid", "pending")
    assert [len(asked) for asked in osrm.requests] == [1, 2]
    assert reasons(job)[1] == ("Cid", "20 min by road, within the 2.8 mi of round 2", 1200)
    assert history(job, "job.round")[0].endswith("2 more eligible technicians, ranked by minutes by road")


def test_job_whose_window_comes_is_ranked_by_the_drives_of_then(floor: Floor, osrm: Osrm):
    start = clock.now() + timedelta(hours=5)
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=3)
    drives(osrm, ann, 30)
    drives(osrm, bob, 40)
    job = floor.started(window_start=start, window_end=start + timedelta(hours=2))
    assert job.waiting_for == "window"
    drives(osrm, bob, 10)
    road_times.reset()
    floor.later(3 * 3600 + 60)
    floor.until(lambda: floor.offers(job) == [("Bob", "pending")])
    assert len(osrm.requests) == 2


@pytest.mark.parametrize("action", ["dispatch_again", "correct", "cannot_make_it"])
def test_actions_that_rank_again_ask_before_their_transaction(floor: Floor, osrm: Osrm, action: str):
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=3)
    job = started_job(floor.organization, floor.service)
    if action == "dispatch_again":
        services.cancel(job.pk, "mistake", actor=MARIA)
    if action == "cannot_make_it":
        cid = floor.technician("Cid", km=2)
        services.assign(job.pk, cid.pk, actor=MARIA, confirm_unfit=True)
    assert osrm.requests == []
    drives(osrm, ann, 30)
    drives(osrm, bob, 10)
    if action == "dispatch_again":
        services.dispatch_again(job.pk, actor=MARIA)
    elif action == "cannot_make_it":
        services.cannot_make_it(job.pk, actor=MARIA)
    else:
        place = factories.PHOENIX
        services.correct(job.pk, actor=MARIA, correction=services.Correction(lat=place.lat, lng=place.lng - 0.001))
    assert len(osrm.requests) == 1
    assert [name for name, *_ in reasons(job) if name != "Cid"] == ["Bob", "Ann"]


def test_auditor_waits_for_no_server(floor: Floor, osrm: Osrm):
    floor.technician("Ann")
    submission = floor.submit()
    clock.travel(30)
    floor.audit()
    assert floor.offers(floor.job(submission)) == [("Ann", "pending")]
    assert osrm.requests == []


def test_pages_say_which_measure_they_show(floor: Floor, osrm: Osrm):
    ann, bob = floor.technician("Ann", km=1), floor.technician("Bob", km=3)
    drives(osrm, ann, None)
    drives(osrm, bob, 10)
    job = floor.started()
    client = factories.browser(factories.dispatcher(floor.organization, "Dana"))
    drawer = client.get(reverse("console:job", args=[job.pk]), headers={"HX-Request": "true"}).content.decode()
    assert "0.6 mi straight line" in drawer
    assert "10 min by road" in drawer
    road_times.reset()
    ask = reverse("console:act", args=[job.pk, "assign"])
    picker = client.get(ask, headers={"HX-Request": "true"}).content.decode()
    assert "0.6 mi straight line" in picker
    assert "10 min by road" in picker
    assert len(osrm.requests) == 2, "the picker asks once"


def test_pages_show_straight_lines_without_a_server(floor: Floor):
    floor.technician("Ann", km=1)
    job = floor.started()
    client = factories.browser(factories.dispatcher(floor.organization, "Dana"))
    ask = reverse("console:act", args=[job.pk, "assign"])
    assert "0.6 mi straight line" in client.get(ask, headers={"HX-Request": "true"}).content.decode()
    assert history(job, "job.offering") == ["found 1 eligible technician of 1 within 31 mi"]
