"""Erasing a person's messages leaves no response that mentions the person, whenever it arrives."""

from __future__ import annotations

import pytest
from django.db import transaction

from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.privacy.personal_data import DataSubject, StillNeeded, erase_person
from dispatch.outbox.models import Attempt
from dispatch.outbox.rules.responses import FAILED, Verdict
from dispatch.outbox.services import attempt_results, attempts
from dispatch.outbox.services.attempt_results import AttemptResult
from dispatch.outbox.services.attempts import DeliveryAttempt
from tests.core.threads import Elsewhere
from tests.harness.outbox import World
from tests.support.waiting import wait_until

MARIA = Actor("user", 7, "Maria")
PHONE = "+16025550123"


def erase(world: World) -> int:
    """Erase the person; return how many messages changed."""
    return erase_person(DataSubject(world.organization.pk, phone=PHONE), actor=MARIA).get("outbox", 0)


def begin(message_id: int, epoch: int) -> DeliveryAttempt:
    (call,), _ = attempts.start_attempts([(message_id, epoch)])
    assert isinstance(call, DeliveryAttempt)
    return call


def answer(*calls: DeliveryAttempt, is_last_try: bool = False) -> list[AttemptResult]:
    """Record responses that mention the person; return those that are not recorded."""
    now = clock.now()
    verdict = Verdict(FAILED, error_class="http_500", error=f"The receiver answered 500 for {PHONE}.")
    said = f'{{"echo": "{PHONE}"}}'
    results = [AttemptResult(call, verdict, now, now, 0.1, 500, said, is_last_try) for call in calls]
    return list(attempt_results.finish_attempts(results).left)


def begin_again(world: World) -> tuple[int, DeliveryAttempt]:
    """Send a message, let its attempt lapse and cancel it; return its id and that attempt."""
    message = world.send_one(world.endpoint(), PHONE)
    world.poll()
    call = begin(message, 1)
    world.travel(61)
    world.recover()
    world.act("cancel", message)
    return message, call


def test_canceled_message_is_erased_once_its_attempt_has_ended(world: World) -> None:
    world.receiver.hold(PHONE)
    world.receiver.answer(PHONE, 422, f'{{"echo": "{PHONE}"}}')
    message = world.send_one(world.endpoint(), PHONE)
    world.start()
    world.receiver.got(PHONE)
    world.act("cancel", message)
    with pytest.raises(StillNeeded, match=f"Message {message} was canceled, but its attempt is still in progress"):
        erase(world)
    assert PHONE in world.message(message).payload
    world.receiver.let_go(PHONE)
    wait_until(lambda: not world.message(message).in_flight)
    assert PHONE in Attempt.objects.get(message=message).answer
    assert erase(world) == 1
    attempt = Attempt.objects.get(message=message)
    assert (attempt.status_code, attempt.answer, attempt.error) == (422, "", "")
    assert (world.message(message).payload, world.message(message).last_error) == ("{}", "")


def test_late_response_for_an_erased_message_is_not_stored(world: World) -> None:
    message, call = begin_again(world)
    assert erase(world) == 1
    answer(call)
    late = Attempt.objects.get(message=message, is_late=True)
    assert (late.status_code, late.error_class, late.answer, late.error) == (500, "http_500", "", "")
    assert world.message(message).last_error == ""


@pytest.mark.parametrize("is_last_try", [False, True])
def test_late_response_during_an_erasure_is_not_stored_and_delays_no_others(
    world: World, is_last_try: bool
) -> None:
    message, call = begin_again(world)
    other = world.send_one(world.endpoint("Other"), "other")
    world.poll()
    on_time = begin(other, 1)
    left: list[AttemptResult] = []
    with transaction.atomic():
        erase(world)
        Elsewhere(lambda: left.extend(answer(call, on_time, is_last_try=is_last_try))).finish()
        assert world.status(other) == "PENDING"
    assert [result.call for result in left] == ([] if is_last_try else [call])
    if left:
        assert not attempt_results.finish_attempts(left).left
    late = Attempt.objects.get(message=message, is_late=True)
    assert (late.status_code, late.answer, late.error) == (500, "", "")
    assert PHONE in Attempt.objects.get(message=other).answer


def test_late_response_for_another_message_is_stored(world: World) -> None:
    message, call = begin_again(world)
    answer(call)
    assert PHONE in Attempt.objects.get(message=message, is_late=True).answer
