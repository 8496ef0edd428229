"""Who owns a phone problem on the board, and for how long."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from accounts.models import Organization, User
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.telephony.models import Call
from notifications.models import Claim
from notifications.services import ownership
from tests.support import factories as make

pytestmark = pytest.mark.django_db
CLAIM = {"kind": ownership.CALL_ERROR, "key": "21210", "do": "claim"}
A_DAY_S = 24 * 3600


@pytest.fixture
def office() -> Organization:
    return make.organization()


@pytest.fixture
def dana(office: Organization) -> User:
    return make.dispatcher(office, "Dana")


@pytest.fixture
def bob(office: Organization) -> User:
    return make.dispatcher(office, "Bob")


def fail_call(office: Organization) -> None:
    """Let the phone provider reject a call with the error 21210."""
    number = make.number(office)
    Call.objects.create(
        organization=office, purpose="offer", subject_id=Call.objects.count(), account=number.account,
        number=number, pool=number.pool, line_slot=1, pool_slot=1, to_phone=make.phone(), from_phone=number.phone,
        status="rejected", place_by=clock.now(), requested_at=clock.now(), ended_at=clock.now(),
        error_code="21210",
    )  # fmt: skip


def attention(client: Client) -> str:
    """Return the board's list of what needs attention."""
    return client.get("/board/").content.decode().split('data-list="attention"')[1].split("</section>")[0]


def claims() -> list[str]:
    """Return who claimed the problem, as the event log has it."""
    events = Event.objects.filter(kind="call_error.claimed").order_by("id")
    return list(events.values_list("actor_label", flat=True))


@pytest.mark.parametrize("name", ["Dana", "Bob"])
def test_a_problem_that_recurs_after_its_claim_has_expired_can_be_claimed(browser, office, dana, bob, name):
    fail_call(office)
    browser(dana).post("/board/claims/", CLAIM)
    assert "Claimed by you" in attention(browser(dana))
    clock.travel(A_DAY_S)
    fail_call(office)
    client = browser({"Dana": dana, "Bob": bob}[name])
    assert "Claimed by" not in attention(client)
    answer = client.post("/board/claims/", CLAIM, headers={"HX-Request": "true"})
    assert "claimed" in answer["HX-Trigger"]
    assert "dispatch:note" not in answer["HX-Trigger"], "no refusal"
    assert "Claimed by you" in attention(client)
    assert claims() == ["Dana", name]


def test_a_claim_of_a_problem_that_goes_on_is_not_lost_to_another(browser, office, dana, bob):
    fail_call(office)
    browser(dana).post("/board/claims/", CLAIM)
    clock.travel(ownership.EXPIRES_AFTER[ownership.CALL_ERROR].total_seconds() - 60)
    fail_call(office)
    assert "Dana" in attention(browser(bob))
    answer = browser(bob).post("/board/claims/", CLAIM, headers={"HX-Request": "true"})
    assert "Dana claimed this at" in answer["HX-Trigger"]
    browser(dana).post("/board/claims/", CLAIM)
    assert claims() == ["Dana"], "claiming again changes nothing"
    browser(bob).post("/board/claims/", {**CLAIM, "do": "take_over"})
    assert Claim.objects.get().user == bob


def test_the_claim_of_a_job_does_not_expire(office, dana, bob):
    ownership.claim(office, ownership.JOB, 1, user=dana, actor=Actor("user", dana.pk, "Dana"))
    clock.travel(timedelta(days=30).total_seconds())
    assert not ownership.has_expired(Claim.objects.get())


def test_buttons_of_a_claim_name_what_they_release_or_take_over(office, dana, bob, browser):
    fail_call(office)
    browser(dana).post("/board/claims/", CLAIM)
    for person, name in ((dana, "Release"), (bob, "Take over")):
        assert re.search(rf'aria-label="{name} [^"]*phone[^"]*"', attention(browser(person)), re.IGNORECASE)
