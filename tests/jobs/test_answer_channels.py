"""Technicians answer by text, by link and by calling back: the very same compare-and-set as a key in the call."""

from __future__ import annotations

import re
from typing import Any

import pytest
import requests
from django.test import Client
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, fault_injection
from dispatch.core.observability import logging as dispatch_logging
from dispatch.jobs import signed_links, timeline
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer
from dispatch.technicians.models import Technician
from dispatch.telephony import loops, webhook_urls
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.services import inbound
from tests.harness.jobs import Floor
from tests.phones import answer, ignore
from tests.support import factories
from tests.support.waiting import PATIENCE


@pytest.fixture
def texting(floor: Floor) -> Floor:
    """The floor, whose number may text, and whose policy sends offers by text, too."""
    OutboundNumber.objects.filter(pk=floor.number.pk).update(sends_texts=True, texts_per_second=1000)
    floor.number.refresh_from_db()
    tell_provider(floor)
    floor.set_policy(offer_by_text=True, missed_call_grace_s=90)
    return floor


def tell_provider(floor: Floor) -> None:
    floor.sim.add_number(
        str(floor.number.phone),
        sms_url=webhook_urls.number_webhook(floor.number, "sms"),
        voice_url=webhook_urls.number_webhook(floor.number, "voice"),
        status_callback=webhook_urls.number_webhook(floor.number, "status"),
    )


def texted(floor: Floor, technician: Technician, words: str) -> str:
    """The body of a text to this technician, once it arrived."""
    loops.send_due()
    return str(floor.phone(technician).gets_text(words)["body"])


def reply(floor: Floor, technician: Technician, body: str) -> None:
    """Sends a text to our number and waits until it was dealt with."""
    before = Text.objects.filter(direction="in", handled_at__isnull=False).count()
    floor.phone(technician).texts_us(str(floor.number.phone), body)
    floor.until(lambda: Text.objects.filter(direction="in", handled_at__isnull=False).count() > before)
    loops.send_due()


def link_in(body: str) -> str:
    found = re.search(r"https?://\S+", body)
    assert found, body
    return found[0]


def test_an_offer_goes_by_text_too_and_a_reply_of_1_takes_the_job(texting: Floor) -> None:
    ann = texting.technician("Ann")
    job = texting.started()
    call = texting.rings(ann)
    body = texted(texting, ann, "Reply 1 to accept")
    assert body.startswith("Copper State Plumbing: Water heater repair, 200 W Washington St")
    assert len(body) < 320

    reply(texting, ann, " 1 ")

    assert texting.offers(job) == [("Ann", "accepted")]
    assert texting.job(job).technician == ann
    call.ended("canceled")
    texted(texting, ann, "The job is yours")
    address = texted(texting, ann, "(602) 555-0123")
    assert "Dana Whitfield" in address
    assert texting.job(job).address in address
    said = [entry.text for entry in timeline.load_timeline(texting.job(job))]
    assert "Ann replied 1 to accept" in said


def test_reply_of_2_offers_the_job_to_the_next(texting: Floor) -> None:
    ann, bob = texting.crew("Ann", "Bob")
    job = texting.started()
    texting.rings(ann)
    texted(texting, ann, "Reply 1")
    reply(texting, ann, "No.")
    texting.rings(bob)
    assert texting.offers(job) == [("Ann", "declined"), ("Bob", "pending")]


def test_a_missed_call_leaves_time_to_answer_the_text(texting: Floor) -> None:
    ann, _ = texting.crew("Ann", "Bob")
    texting.phone(ann).will(ignore())
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    assert texting.offers(job) == [("Ann", "no_answer")]
    assert texting.live_offer(job).technician == ann
    assert (texting.live_offer(job).expires_at - clock.now()).total_seconds() <= 90

    texted(texting, ann, "Reply 1")
    reply(texting, ann, "1")
    assert texting.job(job).technician == ann


def test_when_the_time_after_a_missed_call_is_over_the_next_one_is_called(texting: Floor) -> None:
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(ann).will(ignore())
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    texted(texting, ann, "Reply 1")
    texting.later(91)
    texting.rings(bob)
    assert texting.offers(job) == [("Ann", "no_answer"), ("Bob", "pending")]
    assert Technician.objects.get(pk=ann.pk).misses_in_a_row == 1

    reply(texting, ann, "1")
    texted(texting, ann, "time to accept this job has passed")
    assert texting.job(job).status == "dispatching"


def test_second_answer_hears_that_the_job_is_taken(texting: Floor) -> None:
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(ann).will(ignore())
    texting.phone(bob).will(answer(press="1"))
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    texted(texting, ann, "Reply 1")
    texting.later(91)
    texting.until(lambda: texting.status(job) == "assigned")
    assert texting.job(job).technician == bob

    reply(texting, ann, "yes")
    texted(texting, ann, "already been taken")
    assert texting.job(job).technician == bob


def test_a_reply_counts_for_the_offer_that_was_texted_and_no_later_one(texting: Floor) -> None:
    ann = texting.technician("Ann", max_open_jobs=5)
    texting.phone(ann).will(ignore())
    texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    texted(texting, ann, "Reply 1")
    texting.later(91)
    texting.until(lambda: Job.objects.get().status == "pending")
    second = texting.started()  # its text is still on the way when she replies to the first
    reply(texting, ann, "1")
    assert texting.job(second).technician is None


def test_late_processed_reply_counts_for_the_offer_texted_before_it(texting: Floor) -> None:
    ann = texting.technician("Ann", max_open_jobs=5)
    texting.phone(ann).will(ignore())
    first = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    texted(texting, ann, "Reply 1")
    account = texting.number.account
    said = inbound.IncomingWebhook("SM1", account.account_sid, str(texting.number.phone), str(ann.phone), body="1")
    with fault_injection.arm_crash_point("telephony.text.received"), pytest.raises(fault_injection.Interrupted):
        inbound.receive_text(texting.number, said)
    texting.later(91)
    texting.until(lambda: texting.job(first).status == "pending")
    second = texting.started()
    texting.until(lambda: Offer.objects.filter(job=second, missed_at__isnull=False).exists())
    loops.send_due()
    loops.reconcile_texts()
    assert Text.objects.get(direction="in").handled_at
    assert texting.job(second).technician is None


def test_an_opted_out_technician_is_only_called(texting: Floor) -> None:
    ann = texting.technician("Ann")
    OptOut.objects.create(organization=texting.organization, phone=ann.phone)
    texting.phone(ann).will(answer(press="1"))
    job = texting.started()
    texting.until(lambda: texting.status(job) == "assigned")
    loops.send_due()
    assert not texting.sim.messages(to=str(ann.phone))


def test_help_sends_the_link_to_their_page_and_strangers_get_none(texting: Floor) -> None:
    ann = texting.technician("Ann")
    reply(texting, ann, "help")
    body = texted(texting, ann, "Your page")
    assert requests.get(link_in(body), timeout=PATIENCE).status_code == 200

    stranger = factories.technician(factories.organization(), "Zoe")
    texting.phone(stranger).texts_us(str(texting.number.phone), "help")
    loops.send_due()
    texting.until(lambda: Text.objects.filter(purpose="reply", to_phone=stranger.phone).exists())
    assert "/t/" not in Text.objects.get(purpose="reply", to_phone=stranger.phone).body


def test_calling_back_hears_the_live_offer_and_a_key_takes_it(texting: Floor) -> None:
    ann = texting.technician("Ann")
    texting.phone(ann).will(ignore())
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())

    call = texting.phone(ann).calls_us(str(texting.number.phone), press="1")
    call.hears("Water heater repair").hears("the job is yours")
    assert texting.job(job).technician == ann
    assert "Ann called back and pressed 1" in [entry.text for entry in timeline.load_timeline(texting.job(job))]


def test_late_call_back_hears_that_the_job_is_taken(floor: Floor) -> None:
    tell_provider(floor)
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(ignore())
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    floor.phone(ann).calls_us(str(floor.number.phone)).hears("already been taken")


def test_without_a_time_after_missed_calls_the_next_is_called_at_once(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(ignore())
    job = floor.started()
    floor.rings(bob)
    assert floor.offers(job) == [("Ann", "no_answer"), ("Bob", "pending")]


# --- the link ---------------------------------------------------------------------------------------------------


def test_the_link_shows_the_offer_and_only_a_post_answers_it(texting: Floor) -> None:
    ann = texting.technician("Ann")
    job = texting.started()
    call = texting.rings(ann)
    url = link_in(texted(texting, ann, "Reply 1"))

    for _ in range(2):  # chat programs open links by themselves
        page = requests.get(url, timeout=PATIENCE)
        assert page.status_code == 200
        assert "Accept job" in page.text
        assert "<svg" in page.text
    assert texting.offers(job) == [("Ann", "pending")]
    assert page.headers["Referrer-Policy"] == "same-origin"
    assert "no-store" in page.headers["Cache-Control"]
    assert page.headers["X-Frame-Options"] == "DENY"

    done = requests.post(url, data={"answer": "accept"}, timeout=PATIENCE)
    assert "The job is yours" in done.text
    assert "Dana Whitfield" in done.text
    assert texting.job(job).technician == ann
    call.ended("canceled")


def test_link_shows_the_outcome_of_an_ended_offer(texting: Floor) -> None:
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(ann).will(ignore())
    job = texting.started()
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    url = link_in(texted(texting, ann, "Reply 1"))
    texting.later(91)
    texting.rings(bob)

    late = requests.post(url, data={"answer": "accept"}, timeout=PATIENCE)
    assert "The time to accept has passed" in late.text
    assert "Dana Whitfield" not in late.text
    assert texting.job(job).technician is None

    offer = texting.live_offer(job)
    answer_offer(offer.pk, None, "1", by=AnswerChannel.LINK)
    assert "has been taken" in requests.get(url, timeout=PATIENCE).text
    clock.travel(2 * 86_400)
    assert requests.get(url, timeout=PATIENCE).status_code == 410


def test_repeated_answer_counts_once_and_a_race_has_one_winner(texting: Floor) -> None:
    texting.technician("Ann")
    job = texting.started()
    offer = texting.live_offer(job)
    assert answer_offer(offer.pk, None, "1", by=AnswerChannel.TEXT) is Answer.ACCEPTED
    assert answer_offer(offer.pk, None, "1", by=AnswerChannel.LINK) is Answer.ACCEPTED
    assert texting.kinds(job).count("job.assigned") == 1


def test_log_contains_no_links_or_numbers(texting: Floor) -> None:
    ann = texting.technician("Ann")
    url = page_of(ann)
    told = dispatch_logging.mask_text(f"Conflict: {url} for {ann.phone}")
    assert url.rpartition(".")[2].rstrip("/") not in told
    assert str(ann.phone) not in told
    assert "/t/" in told


def test_policy_with_texts_but_no_texting_number_warns(texting: Floor) -> None:
    OutboundNumber.objects.update(sends_texts=False)
    boss = Client()
    boss.force_login(factories.admin(texting.organization), backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("admin:jobs_dispatchpolicy_change", args=[texting.policy.pk])
    data = {"organization": texting.organization.pk, "offer_by_text": "true", "missed_call_grace_s": "0"}
    assert "Must be above 0 if offers are also sent by text." in boss.post(address, data).content.decode()
    page = boss.post(address, {**data, "missed_call_grace_s": "60"}, follow=True).content.decode()
    assert "no number may send texts" in page


def test_guessed_links_open_nothing_and_are_throttled(texting: Floor, settings: Any) -> None:
    settings.LINK_GUESS_RATE = "3/hour"
    texting.technician("Ann")
    job = texting.started()
    offer = texting.live_offer(job)
    good = signed_links.offer_url(offer)
    token = good.rstrip("/").rsplit("/", 1)[-1]
    other_kind = good.replace("/o/", "/t/")
    changed = good.replace(token, f"{offer.pk + 1}-{token.partition('-')[2]}")
    assert [requests.post(url, timeout=PATIENCE).status_code for url in (other_kind, changed)] == [404, 404]
    assert requests.get(good[:-10] + "/", timeout=PATIENCE).status_code == 404
    assert requests.get(changed, timeout=PATIENCE).status_code == 429
    assert requests.get(good, timeout=PATIENCE).status_code == 200


# --- the technician's own page ----------------------------------------------------------------------------------


def page_of(technician: Technician) -> str:
    return signed_links.technician_url(Technician.objects.get(pk=technician.pk))


def post(url: str, **data: Any) -> requests.Response:
    return requests.post(url, data=data, timeout=PATIENCE)


def test_duty_and_position_are_set_on_the_page(texting: Floor) -> None:
    ann = texting.technician("Ann")
    url = page_of(ann)
    assert "get offers until you go back on duty" in post(url, do="duty", on="0").text
    assert not Technician.objects.get(pk=ann.pk).on_duty
    post(url, do="duty", on="1")
    assert Technician.objects.get(pk=ann.pk).on_duty

    assert "Your position has been updated" in post(url, do="position", place="85281").text
    moved = Technician.objects.get(pk=ann.pk)
    assert (round(moved.lat, 1), round(moved.lng, 1)) == (33.4, -111.9)
    post(url, do="position", lat="33.5", lng="-112.0")
    assert Technician.objects.get(pk=ann.pk).lat == 33.5
    for wrong in ({"place": "nowhere in particular"}, {"lat": "900", "lng": "0"}, {"lat": "nan", "lng": "1"}, {}):
        assert post(url, do="position", **wrong).status_code == 409
    assert Technician.objects.get(pk=ann.pk).lat == 33.5


def test_jobs_are_done_or_given_back_on_the_page(texting: Floor) -> None:
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(ann).will(answer(press="1"))
    first = texting.started()
    texting.until(lambda: texting.status(first) == "assigned")
    url = page_of(ann)
    assert "Dana Whitfield" in requests.get(url, timeout=PATIENCE).text
    back = post(url, do="cannot", job=first.pk, note="Flat tyre")
    assert "find another technician for the job" in back.text
    texting.rings(bob)
    assert Technician.objects.get(pk=ann.pk).open_jobs == 0

    answer_offer(texting.live_offer(first).pk, None, "1", by=AnswerChannel.LINK)
    assert post(url, do="done", job=first.pk).status_code == 409, "it is Bob's now"
    assert texting.job(first).status == "assigned"
    assert "Thank you" in post(page_of(bob), do="done", job=first.pk).text
    assert texting.job(first).status == "completed"
    assert post(page_of(bob), do="done", job=first.pk).status_code == 409


def test_a_page_shows_nothing_of_others_and_old_links_open_nothing(texting: Floor) -> None:
    ann = texting.technician("Ann")
    foreign = factories.technician(factories.organization("Elsewhere"), "Zoe")
    job = texting.started()
    answer_offer(texting.live_offer(job).pk, None, "1", by=AnswerChannel.LINK)
    url = page_of(foreign)
    assert "Dana" not in requests.get(url, timeout=PATIENCE).text
    assert post(url, do="done", job=job.pk).status_code == 409
    assert texting.job(job).status == "assigned"

    from dispatch.core.events import SYSTEM
    from dispatch.technicians import services

    old = page_of(ann)
    services.change_technician(ann.pk, {"phone": factories.phone()}, actor=SYSTEM)
    assert requests.get(old, timeout=PATIENCE).status_code == 404
    new = page_of(ann)
    assert requests.get(new, timeout=PATIENCE).status_code == 200
    services.void_links(ann.pk, actor=SYSTEM)
    assert requests.get(new, timeout=PATIENCE).status_code == 404
    clock.travel(31 * 86_400)
    assert requests.get(new, timeout=PATIENCE).status_code == 410
