"""A key in a call-back counts as of its arrival, once, also if its process dies."""

from __future__ import annotations

import pytest

from dispatch.core import clock, fault_injection
from dispatch.jobs import services
from dispatch.technicians.models import Technician
from dispatch.telephony.models import InboundCall
from dispatch.telephony.providers.base import IncomingWebhook
from dispatch.telephony.services import inbound
from tests.harness.jobs import Floor
from tests.harness.provider import end
from tests.jobs.test_answer_channels import tell_provider
from tests.jobs.test_recorded_keys import answered, apply_unhandled_keys


def call_back(floor: Floor, technician: Technician, key: str, dies_at: str) -> None:
    """The technician calls back and presses a key, and the process that serves it dies at that point."""
    to, sid = str(floor.number.phone), "CA" + "b" * 32
    said = IncomingWebhook(sid, floor.number.account.account_sid, to, str(technician.phone), keys=key)
    call, prompt = inbound.answer_call(floor.number, said)
    assert "1" in prompt.keys
    with fault_injection.arm_crash_point(dies_at), pytest.raises(fault_injection.Interrupted):
        inbound.handle_key(call.pk, floor.number, said, prompt.keys)


@pytest.mark.parametrize("dies_at", ["telephony.inbound_key.recorded", "jobs.answer.committed"])
def test_key_of_a_call_back_is_not_lost_with_its_process(floor, dies_at):
    ann, _bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    call_back(floor, ann, "1", dies_at)
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "accepted")]
    apply_unhandled_keys()
    assert floor.kinds(job).count("job.assigned") == 1
    row = InboundCall.objects.get()
    assert (row.keys_pressed, row.pending_keys, row.next_action_at) == ("1", [], None)


def test_repeated_key_of_a_call_back_counts_once_as_of_its_first_arrival(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    for _ in range(2):
        call_back(floor, ann, "1", "telephony.inbound_key.recorded")
        clock.travel(31)
    row = InboundCall.objects.get()
    assert (row.keys_pressed, len(row.pending_keys)) == ("1", 1)
    services.expire_offer(job.pk, floor.job(job).step_token)
    ringing = floor.rings(bob)
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert InboundCall.objects.get().pending_keys == []
    ringing.ended("canceled")


def test_keys_of_different_prompts_of_a_call_back_are_all_recorded(floor):
    (ann,) = floor.crew("Ann")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    said = IncomingWebhook(
        "CA" + "c" * 32, floor.number.account.account_sid, str(floor.number.phone), str(ann.phone), keys="2"
    )
    back, prompt = inbound.answer_call(floor.number, said)
    for step in range(1, inbound.REMEMBERED_ANSWERS + 5):
        inbound.handle_key(back.pk, floor.number, said, prompt.keys, step=step)
    row = InboundCall.objects.get()
    assert (len(row.keys_pressed), len(row.answered_prompts)) == (
        inbound.REMEMBERED_ANSWERS + 4,
        inbound.REMEMBERED_ANSWERS,
    )
    assert floor.offers(job)[0] == ("Ann", "declined")


def test_key_of_a_call_back_counts_from_its_arrival(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    call_back(floor, ann, "1", "telephony.inbound_key.recorded")
    clock.travel(61)
    services.expire_offer(job.pk, floor.job(job).step_token)
    ringing = floor.rings(bob)
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    ringing.ended("canceled")


def test_key_of_a_call_back_is_applied_once_when_nothing_fails(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    tell_provider(floor)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    floor.phone(ann).calls_us(str(floor.number.phone), press="1").hears("the job is yours")
    assert floor.job(job).technician == ann
    assert InboundCall.objects.get().next_action_at is None
