"""Alerts of an organization that was deactivated wait until it is active again."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection

from accounts import services as accounts
from accounts.models import Organization, User
from accounts.tenancy import actor_of
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.loops import find_loop
from notifications import heartbeat, loops, metrics
from notifications.models import Alert, Delivery, Notification
from notifications.services import acknowledge, escalation
from tests.core.test_loop_isolation import due_alert
from tests.core.test_loop_plans import rows_read
from tests.notifications.conftest import Watch
from tests.support import factories as make
from tests.support.copies import copy_row
from tests.support.plans import forget_statistics, pretend_empty

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = 3600


@pytest.fixture
def ana(watch: Watch) -> User:
    return watch.dispatcher("Ana")


def switch(watch: Watch, *, active: bool) -> None:
    accounts.change_organization(watch.organization.pk, {"is_active": active}, actor=SYSTEM)


def has_work() -> bool:
    """Return whether the loop of escalations would be woken."""
    loop = find_loop("notifications_escalation")
    return loop.name in DueChecks([loop]).find_due({loop.name})


def escalated() -> list[tuple[int, int | None]]:
    rows = Delivery.objects.filter(step__isnull=False).order_by("pk")
    return list(rows.values_list("cycle", "step"))


def test_alert_of_an_inactive_organization_does_not_escalate(watch: Watch, ana: User) -> None:
    alert = watch.alert()
    loops.send_email()
    switch(watch, active=False)
    for _ in range(3):
        watch.after(HOUR)
    assert escalated() == []
    assert watch.called(ana) == 0
    assert watch.kinds(alert) == ["alert_raised"]
    assert Alert.objects.get().repeats == 0


def test_loop_rests_while_only_inactive_organizations_have_alerts(watch: Watch, ana: User) -> None:
    watch.alert()
    loops.send_email()
    clock.travel(HOUR)
    assert has_work()
    switch(watch, active=False)
    assert not has_work()
    assert escalation.next_due() is None
    assert loops.escalate() is None
    assert metrics.alerts_overdue() == [((), 0)]
    assert metrics.oldest_alert() == [((), 0.0)]
    assert not [problem for problem in heartbeat.find_problems() if "escalate" in problem]


def test_escalation_goes_on_once_the_organization_is_active_again(watch: Watch, ana: User) -> None:
    watch.alert()
    switch(watch, active=False)
    watch.after(HOUR)
    switch(watch, active=True)
    assert has_work()
    watch.run()
    assert escalated()[0] == (0, 0)
    watch.rings(ana).answer().press("1").hears("You acknowledged this alert")


def test_acknowledged_alert_returns_only_to_an_active_organization(watch: Watch, ana: User) -> None:
    watch.alert()
    acknowledge(Notification.objects.get().pk, user=ana, actor=actor_of(ana))
    switch(watch, active=False)
    watch.after(HOUR)
    assert Alert.objects.get().status == "acknowledged"
    switch(watch, active=True)
    watch.run()
    assert Alert.objects.get().status == "open"


def test_inactive_organization_delays_no_other(watch: Watch, ana: User) -> None:
    alert = watch.alert()
    stopped = make.organization(is_active=False)
    theirs = Alert.objects.get(pk=alert.pk)
    theirs.pk, theirs.organization = None, stopped
    theirs.next_action_at = theirs.next_repeat_at = clock.now() - timedelta(days=1)
    theirs.save(force_insert=True)
    watch.after(HOUR)
    assert escalated()
    theirs.refresh_from_db()
    assert (theirs.step, theirs.repeats) == (0, 0)


ALERTS = "notifications_alert"
MANY = 3000


@pytest.fixture(params=["analyzed", "unknown", "empty"])
def waiting(request: pytest.FixtureRequest) -> Organization:
    """Give an inactive organization many due alerts of each kind, and an active one an alert in an hour."""
    ended, active = make.organization(is_active=False), make.organization()
    hour_ago = {"next_action_at": "now() - interval '1 hour'", "next_repeat_at": "now() - interval '1 hour'"}
    alert = due_alert(ended)
    copy_row(alert, MANY, {"event_id": "1000000 + n", **hour_ago})
    acknowledged = {"next_action_at": "NULL", "next_repeat_at": "NULL", "returns_at": hour_ago["next_action_at"]}
    copy_row(alert, MANY, {"event_id": "2000000 + n", "status": "'acknowledged'", **acknowledged})
    later = clock.now() + timedelta(hours=1)
    Alert.objects.filter(pk=due_alert(active).pk).update(next_action_at=later, next_repeat_at=later)
    with connection.cursor() as cursor:
        cursor.execute(f"ANALYZE {ALERTS}, accounts_organization")
    if request.param == "unknown":
        forget_statistics([ALERTS])
    elif request.param == "empty":
        pretend_empty([ALERTS])
    return active


def test_due_alerts_of_an_inactive_organization_are_not_read_again_and_again(waiting: Organization) -> None:
    before = rows_read()[ALERTS]
    assert not has_work()
    assert rows_read()[ALERTS] - before <= 100
    before = rows_read()[ALERTS]
    assert loops.escalate() is None
    assert rows_read()[ALERTS] - before <= 100
    assert escalation.next_due() == Alert.objects.get(organization=waiting).next_action_at


def test_batch_of_due_alerts_reads_none_of_an_inactive_organization(waiting: Organization) -> None:
    Alert.objects.filter(organization=waiting).update(next_action_at=clock.now())
    before = rows_read()[ALERTS]
    assert escalation.escalate_due() == 1
    assert rows_read()[ALERTS] - before <= 100
    assert Alert.objects.get(organization=waiting).next_action_at > clock.now()


@pytest.mark.parametrize("statistics", [forget_statistics, pretend_empty])
def test_alerts_of_many_organizations_are_looked_up_once_each(statistics: Callable[[list[str]], None]) -> None:
    count = 600
    many = [Organization(name=f"City {n}", slug=f"city-{n}", time_zone="America/Phoenix") for n in range(count)]
    Organization.objects.bulk_create(many)
    later = clock.now() + timedelta(hours=1)
    alert = due_alert(make.organization())
    Alert.objects.filter(pk=alert.pk).update(next_action_at=later, next_repeat_at=later)
    places = ", (SELECT id AS other, row_number() OVER (ORDER BY id) AS place FROM accounts_organization) others"
    copy_row(alert, count, {"event_id": "1000000 + n", "organization_id": "other"}, places)
    statistics([ALERTS])
    before = rows_read()[ALERTS]
    assert not has_work()
    assert loops.escalate() is None
    assert rows_read()[ALERTS] - before <= 10 * count
