"""Who forges a technician's number can guess only a few PINs, and does not lock out the technician's own calls."""

from __future__ import annotations

import pytest
from django.db import transaction

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import (
    MAX_DAILY_PIN_FAILURES,
    MAX_DAILY_PIN_FAILURES_OF_ALL,
    MAX_PIN_FAILURES,
    PIN_DAY,
    PIN_LOCK,
)
from notifications.models import Notification
from notifications.services.notifications import handle
from tests.harness.jobs import MARIA, Floor
from tests.harness.menus import PIN, ann_of, calls
from tests.jobs.test_answer_channels import texting  # noqa: F401
from tests.support import factories

UNSIGNED, GATEWAY, PARTIAL = "", "TN-Validation-Passed-C", "TN-Validation-Passed-B"
HOUR = 3600.0


@pytest.fixture
def ann(texting: Floor) -> Technician:  # noqa: F811
    ann, _ = ann_of(texting)
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    return ann


def guess(ann: Technician, count: int, caller: str = "none") -> None:
    for _ in range(count):
        assert not technicians.check_pin(ann.pk, "0000", caller=caller)


def wrong_pins(ann: Technician) -> int:
    return Event.objects.filter(kind="technician.pin_wrong", subject_id=ann.pk).count()


def test_forged_caller_does_not_lock_out_the_technicians_attested_calls(texting: Floor, ann: Technician) -> None:  # noqa: F811
    forged = calls(texting, ann, attestation=UNSIGNED)
    for _ in range(MAX_PIN_FAILURES):
        forged.press("0000").has_not_heard("Dana")
    forged.hears("too many wrong PINs")
    calls(texting, ann, attestation=GATEWAY).hears("too many wrong PINs").has_not_heard("Dana")
    calls(texting, ann, attestation=PARTIAL).press(PIN).hears("Dana Whitfield")
    calls(texting, ann).hears("Dana Whitfield")


def test_guesses_of_one_kind_of_caller_are_limited_within_a_day(ann: Technician) -> None:
    guess(ann, MAX_PIN_FAILURES)
    for _ in range(20):
        clock.travel(PIN_LOCK.total_seconds() + 1)
        guess(ann, MAX_PIN_FAILURES)
    assert wrong_pins(ann) == MAX_DAILY_PIN_FAILURES
    assert not technicians.check_pin(ann.pk, PIN)
    assert technicians.check_pin(ann.pk, PIN, caller="B")
    clock.travel(PIN_DAY.total_seconds())
    assert technicians.check_pin(ann.pk, PIN)


def test_guesses_of_all_kinds_of_callers_are_limited_within_a_day(ann: Technician) -> None:
    for _ in range(4):
        for caller in ("none", "failed", "B"):
            guess(ann, MAX_PIN_FAILURES, caller)
        clock.travel(PIN_LOCK.total_seconds() + 1)
    assert wrong_pins(ann) == MAX_DAILY_PIN_FAILURES_OF_ALL
    assert not technicians.check_pin(ann.pk, PIN, caller="B")
    technicians.set_pin(ann.pk, "7391", actor=MARIA)
    assert technicians.check_pin(ann.pk, "7391", caller="B"), "a new PIN ends every lock"


def test_right_pin_starts_the_count_again(ann: Technician) -> None:
    for _ in range(2):
        guess(ann, MAX_PIN_FAILURES - 1)
        assert technicians.check_pin(ann.pk, PIN)
    ann.refresh_from_db()
    assert ann.pin_failures == 0


def test_dispatchers_are_notified_once_per_burst(ann: Technician) -> None:
    maria = factories.dispatcher(ann.organization)

    def notices() -> int:
        with transaction.atomic():
            handle(list(Event.objects.order_by("pk")))
        return Notification.objects.filter(user=maria, kind="technician.pin_locked").count()

    guess(ann, MAX_PIN_FAILURES)
    guess(ann, MAX_PIN_FAILURES, "failed")
    clock.travel(PIN_LOCK.total_seconds() + 1)
    guess(ann, MAX_PIN_FAILURES)
    assert notices() == 1
    clock.travel(PIN_DAY.total_seconds() + HOUR)
    guess(ann, MAX_PIN_FAILURES)
    assert notices() == 2
