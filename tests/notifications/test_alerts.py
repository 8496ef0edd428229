"""A pending job notifies its dispatchers: always somebody, each once, until somebody acknowledges."""

from __future__ import annotations

import pytest
from django.db import transaction

from accounts.models import Membership, User
from dispatch.capacity import account_outages
from dispatch.capacity import services as capacity
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import Event, EventCursor
from dispatch.jobs.models import Job
from dispatch.leads.models import Campaign, LeadDispatch
from dispatch.leads.services import switches
from dispatch.outbox.models import Endpoint
from dispatch.outbox.services import endpoints, target_health
from dispatch.telephony.models import Call
from notifications import loops, rules
from notifications.models import Alert, EscalationPolicy, Notification, Preference, Route
from notifications.services import acknowledgement, notifications
from tests.api.client import Api
from tests.core.horizon import all_readable
from tests.core.threads import Elsewhere
from tests.support import factories as make
from tests.support.tenants import Tenant, tenant

pytestmark = pytest.mark.django_db(transaction=True)

ANA = Actor("user", 1, "Ana")


@pytest.fixture
def ours() -> Tenant:
    made = tenant("Alphaville")
    for model in (Notification, Alert, Route, Preference, EscalationPolicy):
        model.objects.all().delete()
    return made


def turns_pending(of: Tenant) -> Event:
    job = of.row(Job)
    return events.append(
        of.organization.pk, "job.pending", job.pk, reason="exhausted", reason_text="Nobody accepted"
    )


def notify() -> None:
    """Run the notifier until nothing is left."""
    all_readable()
    while loops.step() == 0:
        pass


def told() -> set[str]:
    return {row.user.name for row in Notification.objects.select_related("user")}


def test_every_dispatcher_is_alerted_on_duty_or_not(ours):
    make.dispatcher(ours.organization, "Off duty", on_duty=False)
    make.dispatcher(make.organization(), "Elsewhere")
    turns_pending(ours)
    notify()
    assert told() == {"Alphaville dispatcher", "Off duty"}
    row = Notification.objects.first()
    assert row.level == "critical"
    assert row.title == f"Job {ours.row(Job).pk} needs a dispatcher: Nobody accepted"
    assert row.body == "Alphaville boiler · Alphaville customer · 1 Alphaville Street"
    assert row.organization == ours.organization


def test_many_members_are_notified_in_several_transactions(ours, monkeypatch):
    """One transaction for all of them would hold up everybody's notifications."""
    monkeypatch.setattr(loops.reader, "most", 5)
    assert Membership.objects.of(ours.organization.pk).count() == 2
    notify()
    told_before = Notification.objects.count()
    for _ in range(5):
        events.append(ours.organization.pk, "job.text_failed", ours.row(Job).pk, technician="Ann")
    all_readable()
    again = [(loops.step(), Notification.objects.count() - told_before) for _ in range(3)]
    assert again == [(0, 2), (0, 4), (None, 5)], "one dispatcher, and the next transaction begins at once"


def test_without_an_active_dispatcher_the_admins_are(ours):
    Membership.objects.filter(user=ours.dispatcher).update(is_active=False)
    turns_pending(ours)
    notify()
    assert told() == {"Alphaville admin"}


def test_dispatcher_with_an_inactive_account_does_not_count(ours):
    User.objects.filter(pk=ours.dispatcher.pk).update(is_active=False)
    turns_pending(ours)
    notify()
    assert told() == {"Alphaville admin"}


def test_without_anybody_the_superusers_are_never_nobody(ours):
    make.user("Root", is_superuser=True)
    Membership.objects.filter(organization=ours.organization).update(is_active=False)
    turns_pending(ours)
    notify()
    assert told() == {"Root"}


def test_superuser_without_a_membership_learns_that_their_channel_stopped(ours):
    root = make.user("Root", is_superuser=True)
    stopped = {"name": "Ops", "reason": "gone"}
    events.append(ours.organization.pk, "alert_channel.stopped", 1, owner_id=root.pk, **stopped)
    User.objects.filter(pk=ours.dispatcher.pk).update(is_active=False)
    events.append(ours.organization.pk, "alert_channel.stopped", 2, owner_id=ours.dispatcher.pk, **stopped)
    notify()
    assert told() == {"Root"}, "and nobody whose user was deactivated"


def test_reading_the_log_again_notifies_nobody_twice(ours):
    turns_pending(ours)
    notify()
    EventCursor.objects.update(xid=0, event_id=0)
    notify()
    assert Notification.objects.count() == 1


def test_a_job_that_is_gone_does_not_stop_the_reader(ours):
    events.append(ours.organization.pk, "job.pending", 10**9, reason_text="Nobody accepted")
    turns_pending(ours)
    notify()
    assert Notification.objects.count() == 2


@pytest.mark.parametrize(
    ("kind", "data", "how"),
    [
        ("job.assigned", {"technician": "Unit 12", "by": "hand"}, "Ana assigned the job to Unit 12"),
        ("job.assigned", {"technician": "Ana", "by": "link"}, "Ana accepted the job"),
        ("job.paused", {}, "Ana paused the job"),
        ("job.cancelled", {}, "Ana canceled the job"),
        ("job.dispatch_again", {}, "Ana dispatched the job again"),
        ("job.completed", {}, "Ana completed the job"),
    ],
)
def test_end_of_the_cause_resolves_the_alert(ours, kind, data, how):
    turns_pending(ours)
    notify()
    assert Notification.objects.get().is_open_alert
    events.append(ours.organization.pk, kind, ours.row(Job).pk, actor=ANA, **data)
    notify()
    row = Notification.objects.get()
    assert (row.settled_how, row.is_open_alert) == (how, False)


def test_a_job_that_fails_again_alerts_again(ours):
    turns_pending(ours)
    events.append(ours.organization.pk, "job.dispatch_again", ours.row(Job).pk, actor=ANA)
    turns_pending(ours)
    notify()
    assert [row.is_open_alert for row in Notification.objects.order_by("pk")] == [False, True]


def test_acknowledging_counts_for_all_and_says_who(ours):
    second = make.dispatcher(ours.organization, "Bob")
    turns_pending(ours)
    notify()
    first = Api(user=ours.dispatcher)
    mine = first.get("notifications/").json()["results"][0]
    done = first.post(f"notifications/{mine['id']}/acknowledge/").json()
    assert (done["acknowledged_by"], bool(done["read_at"])) == ("Alphaville dispatcher", True)
    theirs = Api(user=second).get("notifications/").json()["results"][0]
    assert theirs["acknowledged_by"] == "Alphaville dispatcher"
    assert theirs["read_at"] is None, "reading is each one's own"
    again = Api(user=second).post(f"notifications/{theirs['id']}/acknowledge/").json()
    assert again["acknowledged_by"] == "Alphaville dispatcher", "the first one has it"
    assert again["acknowledged_at"] == theirs["acknowledged_at"]
    event = Event.objects.get(kind="job.alert_acknowledged")
    assert (event.subject_id, event.actor_label) == (ours.row(Job).pk, "Alphaville dispatcher")


def test_badge_and_reading(ours):
    turns_pending(ours)
    notify()
    api = Api(user=ours.dispatcher)
    assert api.get("notifications/summary/").json() == {"unread": 1, "open_alerts": 1}
    row = api.get("notifications/?unread=true").json()["results"][0]
    assert api.post(f"notifications/{row['id']}/read/").json()["read_at"]
    assert api.get("notifications/summary/").json() == {"unread": 0, "open_alerts": 1}
    assert api.get("notifications/?unread=true").json()["results"] == []
    assert api.post("notifications/read-all/").json() == {"read": 0}
    turns_pending(ours)
    notify()
    assert api.post("notifications/read-all/").json() == {"read": 1}


def test_notifications_are_marked_read_in_the_order_in_which_others_lock_them(ours):
    """Otherwise a member who marks all as read, and the end of what two of them are about, could deadlock."""
    for _ in range(2):
        events.append(ours.organization.pk, "job.text_failed", ours.row(Job).pk, technician="Ann")
    notify()
    first, second = Notification.objects.filter(user=ours.dispatcher, kind="job.text_failed").order_by("pk")
    with transaction.atomic():
        Notification.objects.select_for_update().get(pk=first.pk)
        reading = Elsewhere(lambda: notifications.read(ours.dispatcher, ours.organization.pk))
        reading.wait_for_lock()
        assert Notification.objects.select_for_update(skip_locked=True).filter(pk=second.pk).exists()
    reading.finish()
    second.refresh_from_db()
    assert second.read_at is not None


def test_colleagues_notifications_are_private(ours):
    second = make.dispatcher(ours.organization, "Bob")
    turns_pending(ours)
    notify()
    theirs = Notification.objects.get(user=second)
    api = Api(user=ours.dispatcher)
    for action in ("read", "acknowledge"):
        assert api.post(f"notifications/{theirs.pk}/{action}/").status_code == 404
    assert api.get(f"notifications/{theirs.pk}/").status_code == 404


def test_recipients_fall_back_to_admins_and_superusers():
    people = rules.People([1, 2], [3], [4])
    assert rules.choose_recipients(people) == [1, 2]
    assert rules.choose_recipients(people, rules.ADMINS) == [3]
    assert rules.choose_recipients(rules.People([], [3], [4])) == [3]
    assert rules.choose_recipients(rules.People([1], [], [4]), rules.ADMINS) == [4]
    assert rules.choose_recipients(rules.People([], [], [4])) == [4]


def test_very_long_words_fit():
    given = {
        "service": "s" * 80,
        "customer": "c" * 120,
        "place": "p" * 400,
        "id": 10**18,
        "reason_text": "r" * 300,
    }
    message = rules.message_of(rules.BY_KIND["job.pending"], given)
    assert len(message.title) <= 160
    assert len(message.body) <= 500
    told = rules.describe_resolution(
        "job.assigned", rules.BY_KIND["job.pending"], "a" * 120, {"technician": "t" * 120}
    )
    assert len(told) <= 160


@pytest.mark.parametrize("rule", rules.TABLE, ids=lambda rule: rule.kind)
def test_every_rule_describes_an_event_without_data(rule):
    assert rules.message_of(rule, {"id": 7}).title
    for kind in rule.ends:
        assert rules.describe_resolution(kind, rule, "Ana", {}).startswith("Ana ")
        assert "{" not in rules.describe_resolution(kind, rule, "Ana", {"technician": "Unit 12"})


def test_disabled_endpoint_notifies_admins_until_enabled(ours):
    endpoint = ours.row(Endpoint)
    target_health.disable_endpoint(endpoint.pk, "Nothing was delivered since Monday.", actor=ANA)
    notify()
    row = Notification.objects.get()
    assert (row.user, row.level) == (ours.admin, "toast")
    assert row.title == "Endpoint Alphaville ERP was disabled"
    assert row.body.startswith("Nothing was delivered since Monday. · Its messages are kept")
    target_health.enable_endpoint(endpoint.pk, actor=ANA)
    notify()
    assert Notification.objects.get().settled_how == "Ana enabled the endpoint"


def test_nobody_is_asked_to_see_to_an_endpoint_that_was_deleted(ours):
    endpoint = Endpoint.objects.create(
        organization=ours.organization, name="New ERP", url="https://new.example/", pool=ours.row(Endpoint).pool
    )
    target_health.disable_endpoint(endpoint.pk, "Nothing was delivered since Monday.", actor=ANA)
    events.append(ours.organization.pk, "endpoint.certificate_expiring", endpoint.pk, name=endpoint.name)
    notify()
    assert Notification.objects.filter(settled_at=None).count() == 2
    endpoints.delete_endpoint(endpoint.pk, actor=ANA)
    notify()
    assert {row.settled_how for row in Notification.objects.all()} == {"Ana deleted the endpoint"}


def test_repeated_call_rejections_notify_occasionally(ours):
    def refused(about: str) -> None:
        call = ours.row(Call)
        events.append(
            ours.organization.pk, "call.rejected", call.pk, about=about, message="No money", code="20003"
        )
        notify()

    refused("number")
    assert not Notification.objects.exists()
    refused("configuration")
    refused("configuration")
    told = {row.user: row.title for row in Notification.objects.all()}
    title = "The phone provider rejects calls: No money"
    assert told == {ours.dispatcher: title, ours.admin: title}
    assert Notification.objects.count() == 2
    clock.travel(901)
    refused("configuration")
    assert Notification.objects.count() == 4


def test_an_outage_of_the_provider_alerts_dispatchers_and_admins(ours):
    account = ours.row(ProviderAccount)
    account_outages.record_failure(account.pk, "refused", "Authenticate (error 20003)", is_certain=True)
    notify()
    rows = list(Notification.objects.all())
    assert {row.user for row in rows} == {ours.dispatcher, ours.admin}
    title = "No calls can be made: The phone provider refused our account: Authenticate (error 20003)"
    assert {(row.level, row.title) for row in rows} == {("critical", title)}
    account_outages.record_success(account.pk)
    notify()
    assert {row.settled_how for row in Notification.objects.all()} == {
        "Dispatch reported that the phone provider is available again"
    }


def test_alert_of_an_outage_ends_when_the_account_is_deactivated(ours):
    """Nothing else could end it: neither requests nor probes use the account."""
    account = ours.row(ProviderAccount)
    account_outages.record_failure(account.pk, "refused", "Authenticate (error 20003)", is_certain=True)
    notify()
    alert = Alert.objects.get()
    acknowledgement.acknowledge_alert(alert.pk, user=ours.dispatcher, actor=ANA, via="app")
    account.refresh_from_db()
    account.is_active = False
    capacity.save_row(account, {"is_active": False}, actor=ANA)
    notify()
    alert.refresh_from_db()
    assert (alert.status, alert.settled_how) == ("settled", "Ana deactivated the account")
    clock.travel(3600)
    loops.escalate()
    alert.refresh_from_db()
    assert (alert.status, alert.returns) == ("settled", 0)


def test_paused_campaign_is_listed_until_it_resumes(ours):
    campaign = ours.row(Campaign)
    switches.pause_campaign(campaign.pk, False, actor=ANA)
    switches.pause_campaign(campaign.pk, True, actor=ANA)
    notify()
    row = Notification.objects.get()
    assert (row.user, row.level, row.settled_how) == (ours.dispatcher, "quiet", "")
    assert (row.title, row.body) == (
        f"Campaign {campaign.name} is paused",
        "by Ana · Its leads wait until it is resumed.",
    )
    switches.pause_campaign(campaign.pk, False, actor=ANA)
    notify()
    assert Notification.objects.get(pk=row.pk).settled_how == "Ana resumed the campaign"


@pytest.mark.parametrize(
    ("data", "title"),
    [
        ({"mode": "live"}, "Lead calling is on: leads are called"),
        ({"mode": "off", "is_paused": True}, "Lead calling is off and paused"),
        ({"is_paused": False}, "Lead calling is no longer paused"),
        ({}, "Lead calling was turned on or off"),
    ],
)
def test_lead_calling_switch_names_the_actor_and_mode(ours, data, title):
    events.append(ours.organization.pk, "lead_dispatch.switched", 1, actor=ANA, **data)
    notify()
    row = Notification.objects.get()
    assert (row.title, row.body, row.level) == (title, "by Ana", "toast")


def test_kill_switch_notifies_every_organization_with_leads(ours):
    LeadDispatch.objects.get_or_create(organization=ours.organization)
    switches.set_engine(is_stopped=True, actor=ANA)
    switches.set_engine(is_stopped=False, promoter_paused=True, actor=ANA)
    notify()
    assert [row.title for row in Notification.objects.filter(organization=ours.organization).order_by("pk")] == [
        "Ana stopped all lead calling",
        "Ana allowed lead calling again and paused lead scheduling",
    ]
