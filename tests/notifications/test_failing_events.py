"""An event that cannot be handled delays the alerts of no other."""

from __future__ import annotations

import pytest

from dispatch.core import clock, events
from dispatch.core.events import quarantine
from dispatch.core.models import Event
from dispatch.core.runtime.loops import NothingSucceeded
from dispatch.jobs.models import Job
from notifications import loops
from notifications.models import Alert
from notifications.services import notifications
from tests.core.horizon import all_readable, held_horizon
from tests.notifications.test_alerts import notify, turns_pending
from tests.support.tenants import Tenant, tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ours() -> Tenant:
    made = tenant("Alphaville")
    Alert.objects.all().delete()
    notify()
    return made


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Ids of events whose handling raises."""
    ids: set[int] = set()
    real = notifications._notify

    def fails(rule: object, event: Event) -> None:
        if event.pk in ids:
            raise KeyError("no such word")
        real(rule, event)  # type: ignore[arg-type]

    monkeypatch.setattr(notifications, "_notify", fails)
    return ids


def test_an_event_that_fails_in_order_stops_no_alert_and_is_retried(ours: Tenant, poison: set[int]) -> None:
    poison.add(events.append(ours.organization.pk, "job.pending", ours.row(Job).pk).pk)
    all_readable()
    for _ in range(3):
        loops.step()
    turns_pending(ours)
    loops.step()
    assert Alert.objects.count() == 1
    poison.clear()
    clock.travel(60)
    loops.step()
    assert Alert.objects.count() == 2


def test_a_reader_that_cannot_move_lets_alerts_be_raised(ours: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(reader: str, *args: object) -> int:
        raise quarantine.ReaderStopped(reader)

    monkeypatch.setattr(quarantine, "apply", stopped)
    turns_pending(ours)
    all_readable()
    with pytest.raises(NothingSucceeded):
        loops.step()
    assert Alert.objects.count() == 1


def test_many_events_that_fail_early_hold_up_no_alert(
    ours: Tenant, poison: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops.reader, "batch", 3)
    with held_horizon():
        for _ in range(4):
            poison.add(events.append(ours.organization.pk, "job.pending", ours.row(Job).pk).pk)
        turns_pending(ours)
        for _ in range(3):
            loops.step()
        assert Alert.objects.count() == 1
