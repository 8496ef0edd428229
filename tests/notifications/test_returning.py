"""An acknowledged alert that nothing follows returns: on the board, and by text and call."""

from __future__ import annotations

import pytest

from accounts.tenancy import actor_of
from dispatch.core import clock
from dispatch.jobs import services as jobs
from dispatch.jobs.models import Job
from notifications.models import Alert, Delivery, EscalationPolicy, Notification
from notifications.services import acknowledge, escalation, ownership
from tests.api.client import Api
from tests.jobs.test_threads import Desk
from tests.support import factories

pytestmark = pytest.mark.django_db


class Watch(Desk):
    def __init__(self) -> None:
        super().__init__()
        type(self.maria).objects.filter(pk=self.maria.pk).update(phone=factories.phone())
        self.maria.refresh_from_db()
        factories.confirm_phone(self.organization, self.maria)

    def alert(self) -> Alert:
        """Raise an alert about a job without anybody near."""
        self.ann.on_duty = False
        self.ann.save()
        job = self.job()
        assert job.status == "pending"
        self.notify()
        return Alert.objects.get(subject_id=job.pk)

    def acknowledge(self, alert: Alert) -> None:
        row = Notification.objects.get(alert=alert, user=self.maria)
        acknowledge(row.pk, user=self.maria, actor=actor_of(self.maria))

    def after(self, seconds: float) -> Alert:
        clock.travel(seconds)
        escalation.return_due()
        escalation.repeat_due()
        escalation.escalate_due()
        return Alert.objects.get()


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_acknowledged_alert_returns_after_15_minutes(watch):
    alert = watch.alert()
    watch.acknowledge(alert)
    assert watch.after(14 * 60).status == "acknowledged"
    alert = watch.after(61)
    assert (alert.status, alert.returns, alert.acknowledged_by) == ("open", 1, None)
    row = Notification.objects.get(alert=alert)
    assert row.is_open_alert
    assert row.read_at is None
    assert row.body.startswith("Maria Lopez acknowledged this 15 min ago, but nothing has happened since · ")
    said = watch.api.get(f"jobs/{alert.subject_id}/").json()["timeline"]
    assert "Dispatch raised the alert again: Maria Lopez acknowledged it, but nothing happened" in [
        entry["text"] for entry in said
    ]
    # and the escalation starts over
    before = Delivery.objects.count()
    watch.after(121)
    assert Delivery.objects.filter(notification=row, cycle=alert.cycle).count() > 0
    assert Delivery.objects.count() > before


def test_returned_alert_is_acknowledged_and_returns_again(watch):
    alert = watch.alert()
    for returns in (1, 2):
        watch.acknowledge(alert)
        assert Alert.objects.get().status == "acknowledged"
        assert watch.after(15 * 60 + 1).returns == returns
    assert Notification.objects.get().body.count("acknowledged this") == 1


def test_alert_whose_cause_ended_stays_away(watch):
    alert = watch.alert()
    watch.acknowledge(alert)
    jobs.cancel(alert.subject_id, "a mistake", actor=actor_of(watch.maria))
    watch.notify()
    assert watch.after(3600).status == "settled"
    assert Alert.objects.get().returns_at is None


def test_what_a_person_does_about_it_postpones_the_return(watch):
    alert = watch.alert()
    watch.acknowledge(alert)
    clock.travel(10 * 60)
    ownership.claim(watch.organization, "job", alert.subject_id, user=watch.maria, actor=actor_of(watch.maria))
    assert watch.after(6 * 60).status == "acknowledged"
    assert watch.after(10 * 60).status == "open"


def test_time_is_configurable_and_frozen_into_the_alert(watch):
    EscalationPolicy.objects.create(organization=watch.organization, return_after_s=120)
    alert = watch.alert()
    EscalationPolicy.objects.update(return_after_s=6000)
    watch.acknowledge(alert)
    assert watch.after(119).status == "acknowledged"
    assert watch.after(2).status == "open"
    api = Api(user=factories.admin(watch.organization))
    assert api.get("escalation-policy/").json()["return_after_s"] == 6000
    changed = api.send("PUT", "escalation-policy/", {"return_after_s": 300})
    assert changed.json()["return_after_s"] == 300
    assert api.send("PUT", "escalation-policy/", {"return_after_s": 5}).status_code == 400


def test_alert_that_nothing_can_end_does_not_return(watch):
    watch.assigned()
    watch.texts("Cancel")
    watch.notify()
    watch.acknowledge(Alert.objects.get())
    assert watch.after(86_400).status == "acknowledged"


def test_alert_of_an_older_release_returns_too(watch):
    alert = watch.alert()
    Alert.objects.update(plan={k: v for k, v in alert.plan.items() if k != "return_after_s"})
    watch.acknowledge(alert)
    assert watch.after(15 * 60 + 1).status == "open"
    assert Job.objects.get().status == "pending"


def test_loop_wakes_for_the_return(watch):
    watch.acknowledge(watch.alert())
    assert escalation.next_due() == Alert.objects.get().returns_at
