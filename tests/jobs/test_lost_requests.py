"""The provider creates a call or text, and its reply is lost: the technician's answer counts all the same."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.runtime.loops import find_loop
from dispatch.jobs import services
from dispatch.telephony import loops
from dispatch.telephony.models import Call, Text
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import reply, texting  # noqa: F401
from tests.phones import manual


def offer_texts(floor: Floor, phone: object) -> int:
    """How many offers were really texted to this phone."""
    return sum("Reply 1" in message["body"] for message in floor.sim.messages(to=str(phone)))


def test_answer_counts_if_the_provider_s_reply_to_the_text_was_lost(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    texting.phone(ann).will(manual())
    texting.sim.lose_callbacks()
    texting.sim.reset_after_creating(on="message")
    job = texting.started()
    texting.rings(ann)
    loops.send_due()
    texting.phone(ann).gets_text("Reply 1")
    texting.until(lambda: Text.objects.get(purpose="offer").status == "unknown")

    reply(texting, ann, "1")

    assert texting.job(job).technician == ann
    clock.travel(61)
    sent = Text.objects.filter(purpose="offer", direction="out")

    def is_found() -> bool:
        find_loop("texts_reconciler").step()
        return sent.get().sid is not None

    texting.until(is_found)
    assert sent.get().status != "not_sent"
    assert offer_texts(texting, ann.phone) == 1


@pytest.mark.parametrize("key", ["1", "2"])
def test_key_counts_if_the_provider_s_reply_to_the_call_was_lost(floor: Floor, key: str) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    for one in (ann, bob):
        floor.phone(one).will(manual())
    floor.sim.lose_callbacks(to=str(ann.phone))
    floor.sim.reset_after_creating(to=str(ann.phone))
    job = floor.started()
    ringing = floor.rings(ann)
    floor.until(lambda: Call.objects.get(to_phone=ann.phone).status == "unknown")
    ringing.answer().hears("press 1").press(key)
    expected = ("Ann", "accepted") if key == "1" else ("Ann", "declined")
    floor.until(lambda: floor.offers(job)[0] == expected)
    assert floor.calls_made(ann) == 1
    if key == "1":
        assert floor.calls_made(bob) == 0
    else:
        floor.rings(bob)


def test_next_is_called_after_a_lost_reply_and_the_first_call_is_hung_up(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    for one in (ann, bob):
        floor.phone(one).will(manual())
    floor.sim.lose_callbacks(to=str(ann.phone))
    floor.sim.reset_after_creating(to=str(ann.phone))
    job = floor.started()
    ringing = floor.rings(ann)
    floor.until(lambda: Call.objects.get(to_phone=ann.phone).status == "unknown")
    services.call_next_now(job.pk, actor=MARIA)
    floor.rings(bob)
    floor.until(lambda: floor.tick() or Call.objects.get(to_phone=ann.phone).ended_at is not None)
    ringing.ended("canceled")
    assert [name for name, _ in floor.offers(job)] == ["Ann", "Bob"]
    assert (floor.calls_made(ann), floor.calls_made(bob)) == (1, 1)
