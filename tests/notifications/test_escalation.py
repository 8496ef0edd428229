"""An unacknowledged alert repeats, calls people one after another, and stops everywhere at once."""

from __future__ import annotations

import pytest
from django.urls import reverse

from accounts.tenancy import actor_of
from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.core.runtime.loops import find_loop
from dispatch.jobs import services as jobs
from dispatch.telephony.models import Call
from notifications import loops, services
from notifications.models import Alert, Delivery, EscalationPolicy, EscalationStep, Notification, Preference
from notifications.models.preferences import MAX_STEPS
from notifications.services import deliveries, escalation
from tests.api.client import Api
from tests.harness import provider
from tests.harness.jobs import MARIA
from tests.notifications.conftest import Watch
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


def voices(watch: Watch, alert: Alert) -> list[tuple[str, str]]:
    return [(who, status) for who, channel, status in watch.ways(alert) if channel == "voice"]


def test_a_phone_rings_key_1_acknowledges_and_everything_stops(watch):
    ana, bob = watch.dispatcher("Ana", order=1), watch.dispatcher("Bob", order=2)
    alert = watch.alert()
    watch.run()
    assert watch.called(ana) == 0, "first it is on the screens only"
    watch.after(121)
    call = watch.rings(ana).answer()
    call.hears("This is an alert from Copper State Plumbing")
    call.hears(f"Job {alert.subject_id} needs a dispatcher")
    call.hears("Phoenix, Arizona, 8 5 0 0 3.")
    call.press("1").hears("You acknowledged this alert").ended()
    alert.refresh_from_db()
    assert (alert.status, alert.acknowledged_by, alert.acknowledged_via) == ("acknowledged", ana, "phone")
    assert {row.acknowledged_by for row in Notification.objects.all()} == {ana}
    for _ in range(4):
        watch.after(200)  # in all, less than ALERT_RETURN_AFTER_S
    assert watch.called(bob) == 0, "nobody else is called"
    assert watch.kinds(alert) == ["alert_raised", "alert_escalated", "alert_acknowledged"]
    assert Event.objects.get(kind="job.alert_acknowledged").actor_label == "Ana"


@pytest.mark.parametrize("stored", [False, True], ids=["arrives-late", "stored"])
def test_a_key_whose_call_has_ended_first_acknowledges_the_alert(watch, stored):
    ana = watch.dispatcher("Ana")
    alert = watch.alert()
    watch.after(121)
    watch.rings(ana).answer().hears("This is an alert")
    call = Call.objects.get(purpose="alert")
    if stored:
        provider.record_only(watch.floor.sim, call, "1")
    provider.end(watch.floor.sim, call)
    if stored:
        clock.travel(6)
        find_loop("calls_keys").step()
    else:
        assert b"<Say" not in provider.press(watch.floor.sim, call, "1").content
    alert.refresh_from_db()
    assert (alert.status, alert.acknowledged_by, alert.acknowledged_via) == ("acknowledged", ana, "phone")


def test_acknowledging_in_the_browser_stops_the_phone_that_rings(watch):
    ana, bob = watch.dispatcher("Ana"), watch.dispatcher("Bob", on_duty=False)
    alert = watch.alert()
    watch.after(121)
    ringing = watch.rings(ana)
    row = Notification.objects.get(user=bob)
    services.acknowledge(row.pk, user=bob, actor=actor_of(bob))
    ringing.ended("canceled")
    watch.until(lambda: not Call.objects.filter(ended_at=None).exists())
    assert ("Ana", "voice", "dropped") in watch.ways(alert)
    assert Delivery.objects.filter(status__in=("waiting", "sending"), channel="voice").count() == 0


def test_the_second_to_answer_hears_who_was_first(watch):
    ana, bob = watch.dispatcher("Ana", on_duty=False), watch.dispatcher("Bob", on_duty=False)
    watch.alert()
    watch.after(121)  # nobody is on duty: all at once
    first, second = watch.rings(ana).answer(), watch.rings(bob).answer()
    second.hears("To acknowledge, press 1")
    first.hears("To acknowledge, press 1").press("1").hears("You acknowledged this alert")
    assert Alert.objects.get().acknowledged_by == ana
    second.ended()


def test_on_duty_in_their_order_then_all_then_admins_then_again(watch):
    watch.dispatcher("Ana", order=2)
    watch.dispatcher("Zoe", order=1)
    watch.dispatcher("Bob", on_duty=False)
    carl = watch.admin("Carl")
    alert = watch.alert()
    watch.after(121)
    assert [who for who, _ in voices(watch, alert)] == ["Zoe"]
    watch.after(46)
    assert [who for who, _ in voices(watch, alert)] == ["Zoe", "Ana"]
    watch.after(61)
    assert [who for who, _ in voices(watch, alert)][2:] == ["Zoe", "Ana", "Bob"]
    watch.after(121)
    assert [who for who, _ in voices(watch, alert)][5:] == ["Carl"]
    assert Notification.objects.filter(user=carl, level="critical").exists(), "and sees it on the screen, too"
    watch.after(901)
    assert [who for who, _ in voices(watch, alert)][6:] == ["Zoe"]


@pytest.mark.parametrize(
    ("who", "expected"),
    [({"off": "Off"}, "Off"), ({"admin": "Carl"}, "Carl"), ({"root": "Root"}, "Root")],
    ids=["all dispatchers", "admins", "superusers"],
)
def test_with_nobody_on_duty_it_goes_up_never_to_nobody(watch, who, expected):
    made = {
        "off": lambda name: watch.dispatcher(name, on_duty=False),
        "admin": watch.admin,
        "root": watch.superuser,
    }
    for kind, name in who.items():
        person = made[kind](name)
    alert = watch.alert()
    watch.after(121)
    watch.rings(person).answer().press("1").hears("You acknowledged this alert")
    alert.refresh_from_db()
    assert alert.acknowledged_by.name == expected


def test_muted_user_is_skipped_unless_everyone_is_muted(watch):
    ana, carl = watch.dispatcher("Ana"), watch.admin("Carl")

    def silence(person):
        Preference.objects.create(organization=watch.organization, user=person, kind="job.pending")

    silence(ana)
    first = watch.alert()
    watch.after(121)
    assert voices(watch, first) == [("Carl", "sending")]
    services.acknowledge(Notification.objects.get(user=ana).pk, user=ana, actor=actor_of(ana))
    watch.until(lambda: not Call.objects.filter(ended_at=None).exists())
    silence(carl)
    second = watch.alert()
    watch.after(121)
    assert [who for who, _ in voices(watch, second)] == ["Ana"], (
        "it was silenced for everybody: it rings all the same"
    )
    assert Event.objects.filter(kind="job.alert_escalated").latest("pk").data["is_last_resort"] is True


def test_without_a_phone_anywhere_an_email_is_the_last_resort(watch, mailoutbox):
    ana = watch.dispatcher("Ana", phone="")
    Preference.objects.create(organization=watch.organization, user=ana, kind="job.pending")
    alert = watch.alert()
    watch.run()
    assert mailoutbox == []
    watch.after(121)
    watch.run()
    assert [mail.to for mail in mailoutbox] == [[ana.email]]
    assert watch.ways(alert) == [("Ana", "email", "sent")]


def test_assigning_the_job_resolves_the_alert_and_its_call(watch):
    ana = watch.dispatcher("Ana")
    alert = watch.alert()
    watch.after(121)
    ringing = watch.rings(ana)
    jobs.cancel(alert.subject_id, "The customer called", actor=MARIA)
    watch.notify()
    ringing.ended("canceled")
    alert.refresh_from_db()
    assert (alert.status, alert.settled_how) == ("settled", "Maria Lopez canceled the job")
    assert watch.kinds(alert)[-1] == "alert_settled"
    watch.after(3600)
    assert len(voices(watch, alert)) == 1


def test_late_answer_hears_that_the_alert_is_resolved(watch):
    ana = watch.dispatcher("Ana")
    alert = watch.alert()
    watch.after(121)
    call = watch.rings(ana).answer().hears("To acknowledge, press 1")
    Alert.objects.filter(pk=alert.pk).update(
        status="settled", next_action_at=None, next_repeat_at=None, settled_how="Bob assigned the job to Unit 12"
    )
    call.press("1").hears("This alert is resolved. Bob assigned the job to Unit 12")
    alert.refresh_from_db()
    assert alert.acknowledged_by is None


def test_a_busy_phone_or_an_unanswered_one_only_means_the_next(watch):
    ana, bob = watch.dispatcher("Ana", order=1), watch.dispatcher("Bob", order=2)
    alert = watch.alert()
    watch.after(121)
    watch.rings(ana).is_busy().ended("busy")
    watch.until(lambda: voices(watch, alert) == [("Ana", "failed")])
    watch.after(46)
    watch.rings(bob).answer().press("1").ended()
    assert Alert.objects.get().acknowledged_by == bob


def test_the_organization_s_own_steps_and_delays(watch):
    ana, carl = watch.dispatcher("Ana"), watch.admin("Carl")
    policy = EscalationPolicy.objects.create(organization=watch.organization, repeat_s=20, again_after_s=300)
    for position, audience, after in ((1, "admins", 10), (2, "on_duty", 30)):
        EscalationStep.objects.create(
            organization=watch.organization, policy=policy, position=position, audience=audience, after_s=after
        )
    alert = watch.alert()
    EscalationPolicy.objects.all().delete()  # an alert that is open keeps the plan with which it was raised
    watch.after(11)
    assert [who for who, _ in voices(watch, alert)] == ["Carl"]
    watch.after(31)
    assert [who for who, _ in voices(watch, alert)] == ["Carl", "Ana"]
    alert.refresh_from_db()
    assert alert.repeats == 1
    assert (alert.cycle, alert.step) == (1, 0)
    assert {carl, ana} == {row.user for row in Notification.objects.all()}


def test_the_steps_of_a_policy_are_limited(watch):
    admin = make.admin(watch.organization)
    step = {"audience": "admins", "after_s": 60}
    put = lambda count: Api(user=admin).send("PUT", "escalation-policy/", {"steps": [step] * count})  # noqa: E731
    assert len(put(MAX_STEPS).json()["steps"]) == MAX_STEPS
    refused = put(MAX_STEPS + 1)
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (400, "steps")
    assert EscalationStep.objects.count() == MAX_STEPS
    page = reverse("admin:notifications_escalationpolicy_change", args=[EscalationPolicy.objects.get().pk])
    assert f'name="steps-MAX_NUM_FORMS" value="{MAX_STEPS}"' in make.browser(admin).get(page).content.decode()


def test_alert_repeats_every_minute_until_acknowledged(watch, monkeypatch):
    ana = watch.dispatcher("Ana", phone="")
    watch.alert()
    told = []
    monkeypatch.setattr(
        "notifications.live_updates.notify_repeated", lambda organization_id, ids: told.append(ids)
    )
    mine = [Notification.objects.get(user=ana).pk]
    for _ in range(3):
        watch.after(61)
    watch.run()
    assert told == [mine] * 3
    services.acknowledge(mine[0], user=ana, actor=actor_of(ana))
    watch.after(800)  # less than ALERT_RETURN_AFTER_S
    assert told == [mine] * 3


@pytest.mark.parametrize("point", ["notifications.escalate.writing", "notifications.escalate.committed"])
def test_crash_between_steps_resumes_without_calling_anyone_twice(watch, point):
    ana, bob = watch.dispatcher("Ana", order=1), watch.dispatcher("Bob", order=2)
    alert = watch.alert()
    clock.travel(121)
    with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
        escalation.escalate_due()
    watch.run()
    assert [who for who, _ in voices(watch, alert)] == ["Ana"]
    watch.rings(ana)
    assert watch.called(ana) == 1
    assert watch.called(bob) == 0


@pytest.mark.parametrize("point", ["notifications.deliver.claimed", "notifications.deliver.sent"])
def test_killed_while_calling_the_call_is_made_once(watch, point):
    ana = watch.dispatcher("Ana")
    alert = watch.alert()
    clock.travel(121)
    escalation.escalate_due()
    with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
        loops.use_phone()
    for _ in range(2):
        clock.travel(121)
        loops.use_phone()
    watch.rings(ana)
    assert watch.called(ana) == 1
    assert len(voices(watch, alert)) == 1


def test_call_with_an_unreported_end_is_resolved(watch, monkeypatch):
    ana = watch.dispatcher("Ana")
    alert = watch.alert()
    monkeypatch.setattr("notifications.channels.voice.apply_call_report", lambda call: None)
    watch.after(121)
    watch.rings(ana).is_busy().ended("busy").told("busy")
    assert voices(watch, alert) == [("Ana", "sending")]
    clock.travel(121)
    loops.use_phone()
    assert voices(watch, alert) == [("Ana", "failed")]


def test_alerts_wait_for_a_line_and_give_up_in_the_end(watch):
    watch.dispatcher("Ana")
    alert = watch.alert()
    watch.floor.number.is_paused = True
    watch.floor.number.save()
    watch.after(121)
    row = Delivery.objects.get(channel="voice")
    assert (row.status, row.error) == ("waiting", "no line: no_number")
    clock.travel(deliveries.PHONE_PATIENCE.total_seconds())
    loops.use_phone()
    assert voices(watch, alert)[0] == ("Ana", "failed")


def test_alert_calls_only_its_own_organization(watch):
    stranger = make.dispatcher(make.organization(), "Stranger")
    watch.dispatcher("Ana")
    alert = watch.alert()
    for _ in range(4):
        watch.after(130)
    assert stranger.name not in {who for who, _, _ in watch.ways(alert)}


def test_pass_over_many_alerts_ends_in_time_and_the_next_goes_on(watch, monkeypatch):
    watch.dispatcher("Ana", phone="")
    for _ in range(2):
        watch.alert()
    clock.travel(121)
    monkeypatch.setattr(escalation, "MAX_PASS_S", 0.0)  # over after the first alert
    assert loops.escalate() == loops.SOONEST_S, "the other one is next, at once"
    assert Event.objects.filter(kind="job.alert_escalated").count() == 1
    loops.escalate()
    assert Event.objects.filter(kind="job.alert_escalated").count() == 2
    assert {alert.repeats for alert in Alert.objects.all()} == {1}
