"""The outcome of a job if assistants screen its calls, carriers drop its texts, or callbacks overlap."""

from __future__ import annotations

from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import Offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Text
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.phones import answer, screens


def test_technician_takes_a_screened_call_and_hears_the_offer_again(floor: Floor) -> None:
    ann = floor.technician("Ann")
    floor.phone(ann).will(screens("connect", press="1", decide_after=20))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "accepted")]
    (call,) = floor.sim.calls_to(str(ann.phone))
    call.hears("the job is yours")
    assert "the person takes the call" in call.story()


def test_screened_and_declined_call_goes_to_the_next_technician(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(screens("hang_up", decide_after=3))
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "hangup"), ("Bob", "accepted")]
    assert floor.calls_made(ann) == 1


def test_screened_call_without_a_key_is_a_miss(floor: Floor) -> None:
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(screens("hang_up", press="1", decide_after=3))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    assert floor.offers(job) == [("Ann", "hangup")]
    assert Technician.objects.get(pk=ann.pk).misses_in_a_row == 1

    floor.phone(ann).will(answer(press="1"))  # a miss does not exclude her from the next dispatch
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "hangup"), ("Ann", "accepted")]
    assert Technician.objects.get(pk=ann.pk).misses_in_a_row == 0


def test_technician_whose_call_was_screened_is_called_in_the_next_round(floor: Floor) -> None:
    floor.set_policy(rounds=2)
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(screens("hang_up", decide_after=3), answer(press="1"))
    floor.phone(bob).will(answer(press="2"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "hangup"), ("Bob", "declined"), ("Ann", "accepted")]


def test_assistant_that_takes_a_message_pauses_nobody_and_declines_nothing(floor: Floor) -> None:
    floor.set_policy(auto_pause_misses=2, answer_timeout_s=600, answered_extension_s=600)
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(screens("voicemail", decide_after=1))
    job = floor.started()
    floor.until(lambda: Offer.objects.get().answered_at)
    floor.later(1300)  # the message is longer than the time to decide
    floor.until(lambda: floor.status(job) == "pending")
    assert floor.offers(job)[0][1] in ("timed_out", "hangup")
    ann.refresh_from_db()
    assert (ann.misses_in_a_row, ann.auto_paused_at) == (1, None)


def test_technician_behind_a_screening_assistant_answers_by_text(texting: Floor) -> None:  # noqa: F811
    ann = texting.technician("Ann")
    texting.phone(ann).will(screens("hang_up", decide_after=3))
    job = texting.started()
    texted(texting, ann, "Reply 1 to accept")
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    reply(texting, ann, "1")
    assert texting.offers(job) == [("Ann", "accepted")]
    assert Technician.objects.get(pk=ann.pk).misses_in_a_row == 0


def test_filtered_texts_do_not_stop_the_job_and_admins_are_told_once(texting: Floor) -> None:  # noqa: F811
    texting.sim.filter_texts(30007)
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(ann).will(screens("hang_up", decide_after=5))
    texting.phone(bob).will(answer(press="1"))
    job = texting.started()
    texted(texting, ann, "Reply 1 to accept")
    texting.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    texting.later(91)
    texting.until(lambda: texting.status(job) == "assigned")
    texting.send_texts()
    texting.until(lambda: Text.objects.filter(status="undelivered", error_code="30007").count() >= 2)
    assert texting.job(job).technician == bob
    assert Event.objects.filter(kind="account.texts_refused").count() == 1


def test_overlapping_reports_of_a_call_have_the_same_outcome(floor: Floor) -> None:
    floor.sim.overlap_callbacks()
    floor.sim.slow_webhooks(3, purpose="status", times=None)
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    (call,) = floor.sim.calls_to(str(ann.phone))
    call.ended("completed").told("completed")
    assert floor.offers(job) == [("Ann", "accepted")]
    assert floor.kinds(job).count("job.assigned") == 1
