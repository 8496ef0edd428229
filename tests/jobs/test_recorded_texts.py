"""A text and a key of a call-back count from their arrival, before any later decision, if their process dies."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from dispatch.core import clock, fault_injection
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import CustomerRefusal, actions
from dispatch.telephony.models import Text
from dispatch.telephony.providers.base import IncomingWebhook
from dispatch.telephony.services import inbound
from tests.harness.jobs import MARIA, Floor
from tests.harness.provider import end, press, record_only
from tests.harness.several import call_at_once, call_of, emergency, offer_of
from tests.jobs.test_answer_channels import texted, texting  # noqa: F401
from tests.jobs.test_recorded_call_backs import call_back
from tests.jobs.test_recorded_keys import answered
from tests.phones import manual


def record_text(floor: Floor, technician: object, body: str) -> None:
    """Receive a text; it is stored, and the process dies before anything acts on it."""
    number = floor.number
    phone = str(technician.phone)  # type: ignore[attr-defined]
    webhook = IncomingWebhook("SM1", floor.sim.account_sid, str(number.phone), phone, body=body)
    dies = fault_injection.arm_crash_point("telephony.text.received")
    with dies, suppress(fault_injection.Interrupted):
        inbound.receive_text(number, webhook)
    assert Text.objects.get(sid="SM1").handled_at is None


@pytest.mark.parametrize("decision", ["assign", "pause", "cancel", "call_next"])
def test_stored_text_counts_before_a_decision(texting: Floor, decision: str) -> None:  # noqa: F811
    ann, bob = texting.crew("Ann", "Bob")
    texting.phone(ann).will(manual())
    job = texting.started()
    texting.rings(ann)
    texted(texting, ann, "Reply 1")
    version = texting.job(job).version
    record_text(texting, ann, "1")
    decide: dict[str, Callable[[], object]] = {
        "assign": lambda: services.assign(job.pk, bob.pk, actor=MARIA, version=version),
        "pause": lambda: services.pause(job.pk, actor=MARIA, version=version),
        "cancel": lambda: services.cancel(job.pk, "a mistake", actor=MARIA, version=version),
        "call_next": lambda: services.call_next_now(job.pk, actor=MARIA, version=version),
    }
    with pytest.raises(actions.Conflict, match="Ann accepted the job"):
        decide[decision]()
    assert texting.job(job).technician == ann
    assert Text.objects.get(sid="SM1").handled_at is not None


def test_earlier_text_that_is_only_stored_counts_before_a_later_key(texting: Floor) -> None:  # noqa: F811
    several = call_at_once(texting, 2)
    ann, bob = several.crew("Ann", "Bob")
    for one in (ann, bob):
        several.phone(one).will(manual())
    job = emergency(several)
    several.rings(ann)
    several.rings(bob).answer().hears("press 1")
    texted(several, ann, "Reply 1")
    record_text(several, ann, "1")
    heard = press(several.sim, call_of(offer_of(job, bob)), "1").text
    assert several.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert "already been taken" in heard
    assert several.kinds(job).count("job.assigned") == 1


def test_later_text_that_is_only_stored_does_not_count_before_an_earlier_key(texting: Floor) -> None:  # noqa: F811
    several = call_at_once(texting, 2)
    ann, bob = several.crew("Ann", "Bob")
    for one in (ann, bob):
        several.phone(one).will(manual())
    job = emergency(several)
    several.rings(ann)
    several.rings(bob).answer().hears("press 1")
    texted(several, ann, "Reply 1")
    record_only(several.sim, call_of(offer_of(job, bob)), "1")
    clock.travel(1)
    record_text(several, ann, "1")
    with pytest.raises(services.IllegalTransition):
        services.pause(job.pk, actor=MARIA)
    assert several.offers(job) == [("Ann", "taken"), ("Bob", "accepted")]


def test_stored_text_about_something_else_waits_for_its_loop(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    texting.phone(ann).will(manual())
    job = texting.started()
    texting.rings(ann)
    texted(texting, ann, "Reply 1")
    record_text(texting, ann, "late 20")
    services.pause(job.pk, actor=MARIA)
    assert texting.job(job).paused_at
    assert Text.objects.get(sid="SM1").handled_at is None


def test_stored_text_takes_the_job_that_a_duplicate_is_merged_into(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    texting.phone(ann).will(manual(), manual(), manual())
    job = texting.started()
    texting.rings(ann)
    texting.pause(job)
    duplicate = texting.started()
    texting.until(lambda: texting.offers(duplicate) == [("Ann", "pending")])
    texting.pause(duplicate)
    services.resume(job.pk, actor=MARIA)
    texting.until(lambda: ("Ann", "pending") in texting.offers(job))
    texting.rings(ann)
    texted(texting, ann, "Reply 1")
    record_text(texting, ann, "1")
    services.merge_duplicate(duplicate.pk, actor=MARIA)
    after = texting.job(job)
    assert (after.status, after.technician, texting.status(duplicate)) == ("assigned", ann, "cancelled")
    kinds = [kind for kind in texting.kinds(job) if kind.startswith("job.")]  # the answer to Ann may be sent later
    assert kinds[-1] == "job.duplicate_merged"


def test_stored_key_of_a_call_back_counts_before_a_decision(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    version = floor.job(job).version
    call_back(floor, ann, "1", "telephony.inbound_key.recorded")
    with pytest.raises(actions.Conflict, match="Ann accepted the job"):
        services.assign(job.pk, bob.pk, actor=MARIA, version=version)
    assert floor.job(job).technician == ann


def test_technician_is_notified_if_the_customer_cancels_after_a_recorded_key(floor: Floor) -> None:
    ann, _bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "1")
    with suppress(CustomerRefusal):
        services.cancel_request(job.pk)
    assert floor.status(job) == "cancelled"
    assert Job.objects.get(pk=job.pk).notices.get().news == "cancelled"
    assert "job.assigned" in floor.kinds(job)
    assert ann.__class__.objects.get(pk=ann.pk).open_jobs == 0
