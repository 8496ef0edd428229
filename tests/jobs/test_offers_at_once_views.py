"""The board, the admin and the API show every technician who is being called, and set how many are."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from dispatch.console.board.cards import state_of
from dispatch.console.board.map import build_map
from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.action_forms import ActionForm, describe_consequence, perform_action
from dispatch.jobs.models import DispatchPolicy, Job, Offer
from dispatch.jobs.rules import Action
from dispatch.jobs.services import threads
from tests.api.client import Api
from tests.harness.jobs import MARIA, Floor
from tests.harness.several import call_at_once, emergency, offer_of
from tests.support import factories as make

HTMX = {"HX-Request": "true"}


@pytest.fixture
def ringing(floor: Floor) -> tuple[Floor, Job]:
    """An emergency that rings on three phones, and the floor."""
    crew = call_at_once(floor).crew("Ann Arroyo", "Bob Bell", "Cid Cruz", "Dee Diaz")
    job = emergency(floor)
    for one in crew[:3]:
        floor.rings(one)
    floor.until(lambda: Offer.objects.filter(job=job, ringing_since=None).count() == 0)
    return floor, floor.job(job)


def page_of(floor: Floor, path: str) -> str:
    client: Any = make.browser(make.dispatcher(floor.organization, "Dana"))
    answer = client.get(path, headers=HTMX if "/jobs/" in path else {})
    assert answer.status_code == 200, answer.content[:500]
    return answer.content.decode()


def test_board_shows_everyone_who_is_called(ringing):
    floor, job = ringing
    column = page_of(floor, "/board/").split('data-list="calling"')[1].split("</section>")[0]
    assert "3 phones ringing" in column
    assert re.findall(r'<b class="break">([^<]+)</b>', column) == ["Ann Arroyo", "Bob Bell", "Cid Cruz"]
    assert column.count("</time> left") == 3
    assert "next: Dee Diaz" in column
    assert "attempt 3 of 4" in column
    panel = page_of(floor, f"/board/jobs/{job.pk}/")
    shown = re.findall(r'<b class="break">([^<]+)</b> ringing', panel)
    assert shown == ["Ann Arroyo", "Bob Bell", "Cid Cruz"]
    assert "Next: Dee Diaz." in panel
    assert "3 at once" in panel
    assert "3 technicians are called at once" in panel
    assert "Give more time" in panel


def test_map_and_thread_know_everyone_who_is_called(ringing):
    floor, job = ringing
    drawn = build_map(floor.organization, job)
    assert drawn is not None
    (point,) = drawn.jobs
    assert "3 phones ringing" in point.words
    called = sorted(technician.words for technician in drawn.technicians if "being called" in technician.words)
    assert called == [f"{name}, being called" for name in ("Ann Arroyo", "Bob Bell", "Cid Cruz")]
    assert [one.name for one in threads.recipients(job)] == ["Ann Arroyo", "Bob Bell", "Cid Cruz"]


def test_state_names_the_offer_nearest_to_an_answer(ringing):
    _floor, job = ringing
    ann, bob, cid = Offer.objects.filter(job=job).order_by("slot")
    assert state_of(job, [ann, bob, cid]) == ("calling", "3 phones ringing")
    ann.missed_at = clock.now()
    assert state_of(job, [ann, bob, cid]) == ("calling", "2 phones ringing")
    assert state_of(job, [ann, bob]) == ("calling", "Ringing")
    assert state_of(job, [ann]) == ("waiting", "Missed call, can still reply")
    cid.answered_at = clock.now()
    assert state_of(job, [ann, bob, cid]) == ("calling", "Answered")


def test_actions_name_whom_they_hang_up_on(ringing):
    _floor, job = ringing
    everyone = "Ann Arroyo, Bob Bell and Cid Cruz"
    called = describe_consequence(Action.CALL_NEXT, job)
    assert called == f"Calls the next technicians immediately and hangs up on {everyone}."
    assert describe_consequence(Action.PAUSE, job).startswith(f"Stops calling and hangs up on {everyone}.")
    assert describe_consequence(Action.EXTEND, job) == f"Gives {everyone} more time to answer."


def test_admin_page_shows_all_offers(ringing):
    floor, job = ringing
    page = page_of(floor, f"/admin/jobs/job/{job.pk}/change/")
    offers = page.split('aria-labelledby="offers"')[1].split("</section>")[0]
    assert offers.count("Calling") == 3
    assert "3 at once" in page


def test_api_tells_the_offers_apart(ringing):
    floor, job = ringing
    api = Api(user=make.dispatcher(floor.organization, "Rob"))
    told = api.get(f"jobs/{job.pk}/").json()
    assert [(offer["slot"], offer["status"]) for offer in told["offers"]] == [(n, "pending") for n in range(3)]
    assert told["policy"]["offers_at_once_for_emergencies"] == 3


def test_form_corrects_the_priority(floor):
    floor.crew("Ann", "Bob")
    job = call_at_once(floor).started(priority=3)
    entered = {
        "version": floor.job(job).version,
        "customer_name": job.customer_name,
        "customer_phone": "+16025550123",
        "address": job.address,
    }
    form = ActionForm({**entered, "priority": "1"}, action=Action.CORRECT, job=job)
    assert form.is_valid(), form.errors
    assert perform_action(Action.CORRECT, job, form.cleaned_data, MARIA).is_done
    floor.work()
    assert floor.job(job).priority == 1
    assert [offer.slot for offer in Offer.objects.filter(job=job)] == [0, 1]


def test_api_corrects_the_priority_without_news_for_the_technician(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    services.assign(job.pk, ann.pk, actor=MARIA)
    before = floor.job(job).notices.count()
    api = Api(user=make.dispatcher(floor.organization, "Rob"))
    answer = api.post(f"jobs/{job.pk}/correct/", {"priority": "urgent"})
    assert (answer.status_code, answer.json()["priority"]) == (200, "urgent")
    assert floor.job(job).notices.count() == before
    assert answer.json()["timeline"][-1]["text"] == "Rob corrected the priority: urgent"
    assert api.post(f"jobs/{job.pk}/correct/", {"priority": "urgent"}).status_code == 400


def test_a_raised_job_does_not_wait_for_the_end_of_quiet_hours(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    services.pause(job.pk, actor=MARIA)
    Job.objects.filter(pk=job.pk).update(
        paused_at=None, waiting_for="quiet_hours", next_action_at=clock.now() + timedelta(days=1000)
    )
    services.correct(job.pk, actor=MARIA, correction=services.Correction(), priority=1)
    floor.rings(bob)  # Ann has just been called
    assert offer_of(job, bob).status == "pending"


def test_admins_set_how_many_are_called_at_once(floor):
    policy = DispatchPolicy.objects.get()
    admin = make.admin(floor.organization)
    api = Api(user=admin)
    answer = api.patch(f"policies/{policy.pk}/", {"offers_at_once_for_emergencies": 4})
    assert answer.status_code == 200, answer.content
    assert answer.json()["effective"]["offers_at_once_for_emergencies"] == 4
    for wrong in (0, 6):
        answer = api.patch(f"policies/{policy.pk}/", {"offers_at_once_for_emergencies": wrong})
        assert answer.status_code == 400
    page = make.browser(admin).get(f"/admin/jobs/dispatchpolicy/{policy.pk}/change/").content.decode()
    assert "Technicians called at once for emergencies" in page
    assert "The first one who accepts has the job, and the others hear that it is taken." in page
