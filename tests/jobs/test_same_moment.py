"""Answers, dispatchers' actions and changes of technicians that meet at the same moment."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job, Offer, TechnicianNotice
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer
from dispatch.jobs.services.answers import offer_state
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from dispatch.telephony.providers.base import IncomingWebhook
from dispatch.telephony.services import inbound
from tests.harness.jobs import MARIA, Floor
from tests.harness.provider import key_pressed
from tests.harness.several import call_at_once, call_of, emergency, offer_of
from tests.jobs.test_actions import assigned_to
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.jobs.test_races import at_once
from tests.phones import manual


def text_from(floor: Floor, technician: Technician, body: str, sid: str = "SM1") -> Text:
    """Receive a text from the technician, as the webhook does."""
    number = floor.number
    webhook = IncomingWebhook(sid, floor.sim.account_sid, str(number.phone), str(technician.phone), body=body)
    return inbound.receive_text(number, webhook)


def listening(floor: Floor, technician: Technician) -> tuple[Job, Offer, Call]:
    """A job whose first technician listens to the offer."""
    job = floor.started()
    floor.rings(technician).answer().hears("press 1")
    offer = floor.live_offer(job)
    return job, offer, call_of(offer)


# --- a dispatcher's action and answers on three channels ---------------------------------------------------------


@pytest.mark.parametrize("action", ["assign", "pause", "cancel", "call_next"])
def test_action_and_answers_on_three_channels_at_once_agree(texting: Floor, action: str) -> None:  # noqa: F811
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(bob).will(manual())
    job, offer, call = listening(texting, ann)
    texted(texting, ann, "Reply 1")
    version = texting.job(job).version
    act: dict[str, Any] = {
        "assign": lambda: services.assign(job.pk, bob.pk, actor=MARIA, version=version),
        "pause": lambda: services.pause(job.pk, actor=MARIA, version=version),
        "cancel": lambda: services.cancel(job.pk, "a mistake", actor=MARIA, version=version),
        "call_next": lambda: services.call_next_now(job.pk, actor=MARIA, version=version),
    }
    page = signed_links.offer_url(offer)
    path = page[page.index("/", len("https://")) :]
    acted, said, shown, heard = at_once(
        act[action],
        lambda: text_from(texting, ann, "1"),
        lambda: Client().post(path, {"answer": "accept"}),
        lambda: key_pressed(texting.sim, call, "1").post(),
    )
    assert not isinstance(said, Exception), said
    assert (shown.status_code, heard.status_code) == (303, 200)
    job = texting.job(job)
    has_ann = job.technician == ann
    assert texting.kinds(job).count("job.assigned") == int(has_ann or action == "assign")
    if isinstance(acted, Conflict):
        assert has_ann
        assert "Ann accepted the job" in str(acted.detail)
        assert "job is yours" in heard.text
    else:
        assert not isinstance(acted, Exception), acted
        assert not has_ann or action == "call_next", texting.story()
    assert ("job is yours" in heard.text) == has_ann, heard.text
    assert Offer.objects.filter(job=job, status="accepted").count() == int(has_ann)


# --- the technician is assigned while their phone rings ----------------------------------------------------------


@pytest.mark.parametrize("key", ["1", "2"])
def test_key_of_a_technician_who_was_just_assigned_confirms_the_job(floor: Floor, key: str) -> None:
    (ann,) = floor.crew("Ann")
    job, offer, call = listening(floor, ann)
    services.assign(job.pk, ann.pk, actor=MARIA)
    assert answer_offer(offer.pk, call.pk, key) is Answer.ACCEPTED
    assert answer_offer(offer.pk, None, key, by=AnswerChannel.TEXT) is Answer.ACCEPTED
    assert floor.job(job).technician == ann
    assert offer_state(Offer.objects.select_related("job", "technician").get(pk=offer.pk)) is Answer.ACCEPTED
    assert floor.kinds(job).count("job.assigned") == 1


# --- a text that never left --------------------------------------------------------------------------------------


@pytest.mark.parametrize("trouble", ["429", "refused"])
def test_reply_is_about_the_offer_whose_text_was_sent(texting: Floor, trouble: str) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    texting.phone(ann).will(manual())
    first = texting.started()
    texting.rings(ann).decline()
    texted(texting, ann, "Reply 1")
    clock.travel(600)
    texting.until(lambda: texting.audit() or texting.status(first) == "pending")
    second = texting.started()
    texting.rings(ann)
    if trouble == "429":
        texting.sim.answer_429(times=None, retry_after=200, on="message")
    else:
        texting.sim.fault("refuse", code=21610, times=None, on="message")
    text = Text.objects.get(purpose="offer", subject_id=texting.live_offer(second).pk)
    texting.until(lambda: texting.send_texts() or Text.objects.get(pk=text.pk).requested_at)
    texting.sim.heal()

    text_from(texting, ann, "1")

    assert texting.offers(second) == [("Ann", "pending")]
    assert texting.job(first).technician == ann


# --- a technician who has left -----------------------------------------------------------------------------------


def test_job_reopened_after_its_technician_left_needs_a_dispatcher(floor: Floor) -> None:
    ann, _bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.complete(job.pk, actor=MARIA)
    technicians.change_technician(ann.pk, {"is_active": False}, actor=MARIA)
    services.reopen(job.pk, actor=MARIA)
    assert list(Job.objects.needing_attention()) == [job]
    assert not TechnicianNotice.objects.filter(status="sending").exists()
    services.cannot_make_it(job.pk, actor=MARIA)
    floor.until(lambda: floor.offers(floor.job(job))[-1][0] == "Bob")
    assert Technician.objects.get(pk=ann.pk).open_jobs == 0


def test_notice_to_a_technician_who_leaves_meanwhile_is_not_sent(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.assign(job.pk, bob.pk, actor=MARIA)
    technicians.change_technician(bob.pk, {"is_active": False}, open_jobs="keep", actor=MARIA)
    services.advance_due_notices()
    assert not Call.objects.filter(purpose="job_news", to_phone=bob.phone).exists()
    news = dict(TechnicianNotice.objects.values_list("technician__name", "status"))
    assert news == {"Ann": "sending", "Bob": "superseded"}, "who lost the job is informed"
    assert list(Job.objects.needing_attention()) == [job]


@pytest.mark.parametrize("again", range(2))
def test_reopening_while_the_technician_is_deactivated_is_never_silent(floor: Floor, again: int) -> None:
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.complete(job.pk, actor=MARIA)
    at_once(
        lambda: services.reopen(job.pk, actor=MARIA),
        lambda: technicians.change_technician(ann.pk, {"is_active": False}, open_jobs="", actor=MARIA),
    )
    row = Technician.objects.get(pk=ann.pk)
    assert floor.status(job) == "assigned"
    assert row.is_active or list(Job.objects.needing_attention()) == [job]


# --- emergencies -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("again", range(2))
def test_three_phones_two_keys_and_a_text_at_once_have_one_winner(texting: Floor, again: int) -> None:  # noqa: F811
    several = call_at_once(texting)
    crew = several.crew("Ann", "Bob", "Cid")
    for one in crew:
        several.phone(one).will(manual())
    job = emergency(several)
    offers = [offer_of(job, one) for one in crew]
    for one in crew[:2]:
        several.rings(one).answer().hears("press 1")
    several.rings(crew[2])
    Text.objects.filter(purpose="offer").update(requested_at=clock.now(), status="delivered")
    keys = [key_pressed(several.sim, call_of(offer), "1") for offer in offers[:2]]
    first, second, _ = at_once(*[key.post for key in keys], lambda: text_from(several, crew[2], "1"))
    winner = several.job(job).technician
    told = {"Ann": "job is yours" in first.text, "Bob": "job is yours" in second.text}
    body = Text.objects.get(purpose="reply").body
    told["Cid"] = "job is yours" in body
    assert told == {one.name: one == winner for one in crew}, several.story()
    assert several.kinds(job).count("job.assigned") == 1
    assert not Offer.objects.filter(job=job, status="pending").exists()
    assert Technician.objects.filter(open_jobs=1).count() == 1


# --- a job that is given back ------------------------------------------------------------------------------------


def test_job_given_back_twice_at_once_is_given_back_once(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    floor.phone(bob).will(manual())
    results = at_once(*[lambda: services.cannot_make_it(job.pk, actor=MARIA, technician_id=ann.pk)] * 3)
    assert sum(isinstance(result, Exception) for result in results) == 2, results
    assert floor.kinds(job).count("job.cannot_make_it") == 1
    floor.rings(bob)
    assert floor.job(job).not_again == [ann.pk]


def test_job_given_back_again_and_again_asks_nobody_twice(floor: Floor) -> None:
    ann, bob, cid = floor.crew("Ann", "Bob", "Cid")
    job = assigned_to(floor, ann)
    services.cannot_make_it(job.pk, actor=MARIA, technician_id=ann.pk)
    floor.rings(bob).answer().hears("press 1").press("1").hears("job is yours")
    services.cannot_make_it(job.pk, actor=MARIA, technician_id=bob.pk)
    floor.phone(cid).will(manual())
    floor.rings(cid)
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    services.cannot_make_it(job.pk, actor=MARIA, technician_id=ann.pk)
    floor.until(lambda: floor.live_offer(job).technician == cid)
    floor.until(lambda: floor.calls_made(cid) == 2)
    assert (floor.calls_made(ann), floor.calls_made(bob)) == (1, 1)
    assert Technician.objects.filter(open_jobs__gt=0).count() == 0
