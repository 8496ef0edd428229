"""Emails: recipients, wording, retries when the server is unavailable, and no effect on the work itself."""

from __future__ import annotations

import smtplib
from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from accounts.models import User
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.jobs.models import Job
from notifications import loops, retention, services
from notifications.models import Alert, Delivery, EscalationPolicy, Notification, Preference, PushMessage, Route
from notifications.services import deliveries
from notifications.services.escalation import staff_of
from notifications.services.preferences import Wants
from tests.notifications.test_alerts import ANA, notify, turns_pending
from tests.support import factories as make
from tests.support.tenants import Tenant, tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ours() -> Tenant:
    made = tenant("Alphaville")
    for model in (Notification, Alert, Route, Preference, EscalationPolicy):
        model.objects.all().delete()
    return made


def test_an_alert_goes_out_by_email_at_once(ours, mailoutbox, settings):
    turns_pending(ours)
    notify()
    loops.send_email()
    mail = mailoutbox[0]
    job = ours.row(Job)
    assert mail.to == [ours.dispatcher.email]
    assert mail.subject == f"[Alphaville Heating] Job {job.pk} needs a dispatcher: Nobody accepted"
    assert f"{settings.PUBLIC_BASE_URL}/board/?job={job.pk}&in=alphaville" in mail.body
    assert "/notifications/choices/?in=alphaville" in mail.body
    assert "1 Alphaville Street" in mail.body
    assert "<h1" in mail.alternatives[0][0]
    loops.send_email()
    assert len(mailoutbox) == 1
    assert Event.objects.get(kind="delivery.sent").data["channel"] == "email"


def test_customer_names_are_escaped(ours, mailoutbox):
    Job.objects.filter(pk=ours.row(Job).pk).update(customer_name="<script>x</script>")
    turns_pending(ours)
    notify()
    loops.send_email()
    assert "<script>" not in mailoutbox[0].alternatives[0][0]
    assert "<script>" in mailoutbox[0].body


def test_unavailable_mail_server_is_retried_for_a_limited_time(ours, mailoutbox, monkeypatch):
    def refuse(message):
        raise smtplib.SMTPServerDisconnected("gone")

    monkeypatch.setattr("django.core.mail.EmailMultiAlternatives.send", refuse)
    turns_pending(ours)
    notify()
    loops.send_email()
    row = Delivery.objects.get()
    assert (row.status, row.attempts, row.error) == ("waiting", 1, "gone")
    loops.send_email()
    assert Delivery.objects.get().attempts == 1, "not before its time"
    for pause in deliveries.EMAIL_RETRIES_S:
        clock.travel(pause + 1)
        loops.send_email()
    row = Delivery.objects.get()
    assert (row.status, row.attempts) == ("failed", 6)
    assert Event.objects.get(kind="delivery.failed").data["why"] == "gone"
    assert Notification.objects.get().is_open_alert, "what it was about is not touched"


def test_missing_mail_server_is_reported(ours, settings):
    settings.EMAIL_IS_SET_UP = False
    turns_pending(ours)
    notify()
    loops.send_email()
    assert Delivery.objects.get().error == "No mail server is configured (EMAIL_URL)."


def test_a_process_that_dies_with_a_mail_leaves_it_to_the_next(ours, mailoutbox):
    turns_pending(ours)
    notify()
    Delivery.objects.update(status="sending", attempts=1, next_attempt_at=clock.now() + deliveries.CLAIM)
    loops.send_email()
    assert not mailoutbox
    clock.travel(deliveries.CLAIM.total_seconds() + 1)
    loops.send_email()
    assert len(mailoutbox) == 1


def test_acknowledged_alert_sends_no_email(ours, mailoutbox):
    turns_pending(ours)
    notify()
    services.acknowledge(Notification.objects.get().pk, user=ours.dispatcher, actor=ANA)
    loops.send_email()
    assert mailoutbox == []
    assert Delivery.objects.get().status == "dropped"


def test_each_user_chooses_email_notifications(ours, mailoutbox):
    wants = Wants(shown=False, email=False, sms=False, voice=False)
    services.save_preference(ours.dispatcher, ours.organization.pk, "job.pending", wants, actor=ANA)
    turns_pending(ours)
    notify()
    loops.send_email()
    assert mailoutbox == []
    assert Notification.objects.get().level == "critical", "an alert is always shown"
    wanted = Wants(shown=False, email=True, sms=False, voice=False)
    services.save_preference(ours.dispatcher, ours.organization.pk, "job.cannot_make_it", wanted, actor=ANA)
    events.append(ours.organization.pk, "job.cannot_make_it", ours.row(Job).pk, technician="Unit 12")
    notify()
    loops.send_email()
    assert mailoutbox[0].subject.endswith("Unit 12 can't make it")
    assert Notification.objects.get(kind="job.cannot_make_it").level == "quiet", "listed, not shown"


def test_an_organization_routes_a_kind_to_its_admins_or_switches_it_off(ours):
    Route.objects.create(organization=ours.organization, kind="job.pending", to="admins")
    Route.objects.create(organization=ours.organization, kind="job.cannot_make_it", is_on=False)
    turns_pending(ours)
    events.append(ours.organization.pk, "job.cannot_make_it", ours.row(Job).pk, technician="Unit 12")
    notify()
    assert [row.user for row in Notification.objects.all()] == [ours.admin]


def test_a_kind_that_matters_more_somewhere_becomes_an_alert_there(ours):
    Route.objects.create(organization=ours.organization, kind="job.cannot_make_it", level="critical")
    events.append(ours.organization.pk, "job.cannot_make_it", ours.row(Job).pk, technician="Unit 12")
    notify()
    alert = Alert.objects.get()
    assert alert.status == "open"
    assert Notification.objects.get().is_open_alert
    User.objects.filter(pk=ours.dispatcher.pk).update(phone="+16025550199")
    make.confirm_phone(ours.organization, User.objects.get(pk=ours.dispatcher.pk))
    assert "voice" in staff_of(alert).ways[ours.dispatcher.pk], "and calls, as every alert"


@pytest.mark.parametrize("change", [{"is_on": False}, {"level": "quiet"}, {"kind": "job.nothing"}])
def test_an_alert_cannot_be_silenced_for_everybody(ours, change):
    route = Route(**{"organization": ours.organization, "kind": "job.pending", **change})
    with pytest.raises(ValidationError):
        route.full_clean()


def test_old_notifications_are_deleted_except_open_alerts(ours, mailoutbox):
    PushMessage.objects.all().delete()  # the tenant's row is of no alert, so it would be deleted by its age
    turns_pending(ours)
    notify()
    loops.send_email()
    old = clock.now() - timedelta(days=1)
    clock.travel(200 * 86_400)
    assert retention.delete_old(ours.organization.pk, clock.now(), 10) == 0
    services.acknowledge(Notification.objects.get().pk, user=ours.dispatcher, actor=ANA)
    assert retention.delete_old(ours.organization.pk, old, 10) == 0
    assert retention.delete_old(ours.organization.pk, clock.now(), 10) == 1
    assert [model.objects.count() for model in (Notification, Alert, Delivery)] == [0, 0, 0]
