"""Alerts do not wait for the log to be readable in order, and reading it in order later changes nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import transaction

from accounts.models import Membership
from dispatch.core import clock, events
from dispatch.core.models import EventCursor
from dispatch.jobs.models import Job
from notifications import loops
from notifications.models import Alert, Claim, Delivery, EscalationPolicy, Notification, Preference, Route
from notifications.services import ownership
from tests.core.horizon import held_horizon
from tests.core.threads import Elsewhere
from tests.notifications.conftest import Watch
from tests.notifications.test_alerts import ANA, notify, turns_pending
from tests.notifications.test_socket import hear, listening
from tests.support import factories as make
from tests.support.tenants import Tenant, tenant
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ours() -> Tenant:
    made = tenant("Alphaville")
    for model in (Notification, Alert, Route, Preference, EscalationPolicy):
        model.objects.all().delete()
    notify()
    return made


@pytest.fixture(params=["", "postgres"], ids=["this-database", "another-database"])
def held(request: pytest.FixtureRequest, transactional_db: None) -> str:
    return str(request.param)


@pytest.fixture
def stuck(ours: Tenant) -> Iterator[None]:
    """Block the readers for the rest of the test."""
    with held_horizon():
        yield


def notify_early() -> None:
    """Run the notifier while the log is not readable in order."""
    while loops.step() == 0:
        pass


def ended(ours: Tenant, kind: str = "job.assigned", **data: object) -> None:
    events.append(ours.organization.pk, kind, ours.row(Job).pk, actor=ANA, **data)


def test_a_pending_job_alerts_while_a_transaction_is_open(watch: Watch, app_url: str, held: str) -> None:
    dana = watch.dispatcher("Dana")
    with held_horizon(held), listening(app_url, dana) as socket:
        hear(socket, "welcome")
        submission = watch.floor.submit()
        watch.floor.until(lambda: watch.floor.status(submission) == "pending")
        notify_early()
        alert = Alert.objects.get()
        heard = hear(socket)
        assert (heard["type"], heard["level"], heard["id"]) == (
            "notification", "critical", Notification.objects.get(user=dana).pk,
        )  # fmt: skip
        clock.travel(600)
        watch.until(lambda: watch.called(dana) or None, "the alert escalates to a phone")
        before = list(Notification.objects.values_list("pk", flat=True))
        ways = Delivery.objects.count()
    watch.notify()
    assert list(Notification.objects.values_list("pk", flat=True)) == before
    assert Delivery.objects.count() == ways
    assert Alert.objects.get().pk == alert.pk


def test_end_of_the_cause_resolves_the_alert_early(ours: Tenant, stuck: None) -> None:
    turns_pending(ours)
    notify_early()
    assert Notification.objects.get().is_open_alert
    ended(ours, technician="Unit 12")
    notify_early()
    row = Notification.objects.get()
    assert (row.settled_how, row.is_open_alert) == ("Ana assigned the job to Unit 12", False)
    assert Alert.objects.get().status == Alert.Status.SETTLED


def test_reading_in_order_later_does_not_end_a_newer_alert(ours: Tenant) -> None:
    with held_horizon():
        turns_pending(ours)
        ended(ours, "job.dispatch_again")
        notify_early()
        turns_pending(ours)
        notify_early()
        assert [alert.status for alert in Alert.objects.order_by("pk")] == ["settled", "open"]
        person = ours.dispatcher
        ownership.claim(ours.organization, "job", ours.row(Job).pk, user=person, actor=ANA)
    notify()
    assert [alert.status for alert in Alert.objects.order_by("pk")] == ["settled", "open"]
    assert [row.is_open_alert for row in Notification.objects.order_by("pk")] == [False, True]
    assert Claim.objects.of(ours.organization).filter(subject_id=ours.row(Job).pk).exists()


def test_alert_committed_after_its_end_is_resolved_at_once(ours: Tenant) -> None:
    appended, commit = threading.Event(), threading.Event()

    def start_late() -> None:
        with transaction.atomic():
            turns_pending(ours)
            appended.set()
            assert commit.wait(PATIENCE)

    with held_horizon():
        late = Elsewhere(start_late)
        assert appended.wait(PATIENCE)
        ended(ours, technician="Unit 12")
        notify_early()
        assert not Alert.objects.exists()
        commit.set()
        late.finish()
        notify_early()
        alert = Alert.objects.get()
        assert (alert.status, alert.settled_how) == ("settled", "Ana assigned the job to Unit 12")
        assert not Delivery.objects.filter(next_attempt_at__isnull=False).exists()
    notify()
    assert Alert.objects.get().status == "settled"
    assert Notification.objects.get().settled_how == "Ana assigned the job to Unit 12"


def test_a_notifier_that_dies_in_between_notifies_once(ours: Tenant, stuck: None, monkeypatch) -> None:
    turns_pending(ours)
    with monkeypatch.context() as broken:
        broken.setattr("notifications.live_updates.notify_written", lambda *args: 1 / 0)
        loops.step()
        assert not Notification.objects.exists()
        assert not Alert.objects.exists()
    notify_early()
    loops.early.reset()  # another process takes over
    notify_early()
    assert Notification.objects.count() == Alert.objects.count() == 1


def test_one_event_that_fails_does_not_hold_up_the_others(ours: Tenant, stuck: None, monkeypatch) -> None:
    first = turns_pending(ours)
    from notifications.services import notifications

    notify_one = notifications._notify
    monkeypatch.setattr(
        notifications, "_notify", lambda rule, event: 1 / 0 if event.pk == first.pk else notify_one(rule, event)
    )
    turns_pending(ours)
    loops.step()
    assert Alert.objects.get().event_id > first.pk


def test_a_stopped_organization_costs_only_its_own_events(ours: Tenant) -> None:
    theirs = tenant("Bravotown")
    notify()
    position = EventCursor.objects.get(name=loops.reader.name)
    own = f"{loops.reader.name}:{theirs.organization.pk}"
    with held_horizon():  # nothing is read in order meanwhile
        kept = turns_pending(theirs)
        for _ in range(3):
            turns_pending(ours)
        notify_early()
        assert len(loops.early._taken) == 4
    EventCursor.objects.create(name=own, xid=position.xid, event_id=position.event_id, moved_at=clock.now())
    last = turns_pending(ours)
    last.refresh_from_db()
    EventCursor.objects.filter(name=loops.reader.name).update(xid=last.xid, event_id=last.pk)
    loops.early.step()
    assert set(loops.early._taken) == {kept.pk}
    loops.early.step()
    assert Alert.objects.count() == 5, "each alerts once"


def test_two_notifiers_at_once_notify_once(ours: Tenant, stuck: None) -> None:
    for _ in range(5):
        turns_pending(ours)

    def read() -> None:
        reader = type(loops.early)(loops.early.reader, loops.early.handle)
        while reader.step():
            pass

    for thread in [Elsewhere(read) for _ in range(3)]:
        thread.finish()
    assert Alert.objects.count() == Notification.objects.count() == 5


def test_noncritical_events_wait_for_the_ordered_reader(ours: Tenant) -> None:
    with held_horizon():
        events.append(ours.organization.pk, "job.cannot_make_it", ours.row(Job).pk, technician="Ann")
        notify_early()
        assert not Notification.objects.exists()
    notify()
    assert Notification.objects.count() == 1


def test_a_kind_that_an_admin_made_critical_alerts_early(ours: Tenant, stuck: None) -> None:
    Route.objects.create(organization=ours.organization, kind="job.cannot_make_it", level="critical")
    events.append(ours.organization.pk, "job.cannot_make_it", ours.row(Job).pk, technician="Ann")
    notify_early()
    assert Alert.objects.count() == 1


def test_a_repeated_alert_is_rationed_by_the_time_of_its_event(ours: Tenant) -> None:
    Route.objects.create(organization=ours.organization, kind="call.rejected", level="critical")
    with held_horizon():
        for _ in range(2):
            events.append(ours.organization.pk, "call.rejected", 1, about="configuration", message="No.")
        notify_early()
        assert Alert.objects.count() == 1
        clock.travel(1000)
    notify()
    assert Alert.objects.count() == 1


def test_a_removed_member_is_sent_away_early(app_url: str, ours: Tenant, stuck: None, settings) -> None:
    settings.SOCKET_RECHECK_S = 3600
    with listening(app_url, ours.dispatcher) as socket:
        hear(socket, "welcome")
        member = Membership.objects.get(user=ours.dispatcher)
        Membership.objects.filter(pk=member.pk).update(is_active=False)
        events.append(ours.organization.pk, "membership.changed", member.pk)
        notify_early()
        from tests.notifications.test_socket import closed_with

        assert closed_with(socket) == 4403


def test_the_running_notifier_alerts_within_seconds(ours: Tenant, stuck: None) -> None:
    from dispatch.core.runtime.loops import find_loop
    from tests.core.loops import runs

    make.dispatcher(ours.organization, "Bob")
    with runs(find_loop("notifier")):
        turns_pending(ours)
        wait_until(lambda: Notification.objects.count() == 2)
    assert EventCursor.objects.filter(name="notifications").exists()
