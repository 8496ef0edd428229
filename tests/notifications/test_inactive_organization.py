"""Alerts of an organization that was deactivated wait until it is active again."""

from __future__ import annotations

from datetime import timedelta

import pytest

from accounts import services as accounts
from accounts.models import User
from accounts.tenancy import actor_of
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.loops import find_loop
from notifications import heartbeat, loops, metrics
from notifications.models import Alert, Delivery, Notification
from notifications.services import acknowledge, escalation
from tests.notifications.conftest import Watch
from tests.support import factories as make

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
