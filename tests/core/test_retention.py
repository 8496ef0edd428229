"""Retention deletes expired rows in small batches, by each organization's rule; open and unread rows stay."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.urls import reverse

from accounts import loops
from accounts import services as accounts
from accounts.models import RetentionRule
from accounts.tenancy import actor_of
from dispatch.core import clock, events
from dispatch.core.events.readers import EventReader, readers
from dispatch.core.models import Event, EventCursor
from dispatch.core.privacy import event_retention, retention
from dispatch.jobs.models import Job
from tests.core.horizon import all_readable
from tests.support import factories as make
from tests.support.tenants import tenant

pytestmark = pytest.mark.django_db(transaction=True)
DAY_S = 86_400


@pytest.fixture
def reader(monkeypatch: Any) -> EventReader:
    """Register the only reader of the log."""
    for name in list(readers):
        monkeypatch.delitem(readers, name)
    return EventReader("test-retention", lambda found: None)


@pytest.fixture
def no_floor(monkeypatch: Any, settings: Any) -> None:
    """Let organizations delete events after a day."""
    monkeypatch.setattr(retention, "kept", dict(retention.kept))
    settings.EVENT_LOG_MIN_DAYS = 1
    event_retention.register()


def catch_up(reader: EventReader) -> None:
    all_readable()
    while reader.step():
        pass


def kinds() -> list[str]:
    return list(Event.objects.order_by("id").values_list("kind", flat=True))


def age_all() -> None:
    for _ in range(20):
        if loops.delete_expired() is None:
            return
    raise AssertionError("it never came to an end")


def test_old_events_go_when_all_have_read_them(reader):
    ours = make.organization()
    events.append(ours.pk, "thing.old", 1)
    clock.travel(401 * DAY_S)
    events.append(ours.pk, "thing.new", 1)
    age_all()
    assert kinds() == ["thing.old", "thing.new"], "the reader has not begun"
    EventCursor.objects.create(name=reader.name)
    age_all()
    assert kinds() == ["thing.old", "thing.new"], "the reader has not read it"
    catch_up(reader)
    age_all()
    assert kinds() == ["thing.new"]


def test_the_history_of_an_open_job_stays_whole(reader):
    ours = tenant("Alphaville")
    RetentionRule.objects.all().delete()  # it has a separate rule
    job = ours.row(Job)
    Event.objects.all().delete()
    for kind, subject in (("job.created", job.pk), ("submission.received", job.submission_id)):
        events.append(ours.organization.pk, kind, subject)
    events.append(ours.organization.pk, "call.ringing", 7, job_id=job.pk)
    events.append(ours.organization.pk, "call.lost", 8, job_id=0)
    clock.travel(401 * DAY_S)
    catch_up(reader)
    age_all()
    assert kinds() == ["job.created", "submission.received", "call.ringing"]
    Job.objects.filter(pk=job.pk).update(ended_at=clock.now(), status="cancelled", pending_reason="")
    age_all()
    assert kinds() == []


def test_each_organization_has_its_own_rule(reader, no_floor, settings):
    short, long, forever, other = (make.organization() for _ in range(4))
    for organization, days in ((short, 10), (long, 1000), (forever, 0)):
        RetentionRule.objects.create(organization=organization, what="events", days=days)
    for organization in (short, long, forever, other):
        events.append(organization.pk, "thing.old", 1)
    clock.travel(11 * DAY_S)
    catch_up(reader)
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {long.pk, forever.pk, other.pk}
    settings.RETENTION_DAYS = {"events": 5}
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {long.pk, forever.pk}
    clock.travel(2000 * DAY_S)
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {forever.pk}


def test_batches_are_small_and_one_failure_stops_nobody(reader, monkeypatch):
    def broken(organization_id: int, before: Any, limit: int) -> int:
        raise RuntimeError("no")

    ours = make.organization()
    monkeypatch.setattr(
        retention, "kept", {"broken": retention.RetentionKind("broken", "", 1, 1, broken), **retention.kept}
    )
    monkeypatch.setattr(loops, "BATCH", 2)
    for _ in range(5):
        events.append(ours.pk, "thing.old", 1)
    clock.travel(401 * DAY_S)
    catch_up(reader)
    left = []
    while loops.delete_expired() is not None:
        left.append(Event.objects.count())
    assert (left, Event.objects.count()) == ([3, 1], 0)


# --- walks over many organizations ------------------------------------------------------------------------------


class Rows:
    """Expired rows of one kind, the only one, in batches of one row."""

    def __init__(self, monkeypatch: Any) -> None:
        self.left: Counter[int] = Counter()
        self.visits: Counter[int] = Counter()
        kind = retention.RetentionKind("rows", "Rows", 1, 1, self._delete)
        monkeypatch.setattr(retention, "kept", {"rows": kind})
        monkeypatch.setattr(loops, "BATCH", 1)

    def _delete(self, organization_id: int, before: Any, limit: int) -> int:
        self.visits[organization_id] += 1
        count = min(limit, self.left[organization_id])
        self.left[organization_id] -= count
        return count


@pytest.fixture
def rows(monkeypatch: Any) -> Rows:
    return Rows(monkeypatch)


def test_a_walk_of_many_passes_visits_each_organization_once_and_rests(rows, monkeypatch):
    monkeypatch.setattr(loops, "MAX_PASS_S", 0.0)  # over after one organization
    organizations = [make.organization().pk for _ in range(5)]
    for _ in organizations:
        assert loops.delete_expired() is not None, "organizations are left"
    assert loops.delete_expired() is None
    assert rows.visits == Counter(organizations)
    make.organization()
    age_all()
    assert sorted(rows.visits.values()) == [1, 2, 2, 2, 2, 2]


def test_after_a_walk_only_those_with_more_expired_rows_are_visited(rows):
    quiet, busy = make.organization().pk, make.organization().pk
    rows.left[busy] = 3
    age_all()
    assert rows.left[busy] == 0
    assert rows.visits == Counter({quiet: 1, busy: 4})


def test_an_organization_with_more_expired_rows_delays_no_walk(rows, settings):
    settings.RETENTION_INTERVAL_S = 0.0
    quiet, busy = make.organization().pk, make.organization().pk
    rows.left[busy] = 100
    for _ in range(3):
        assert loops.delete_expired() is not None
    assert rows.visits == Counter({quiet: 3, busy: 3})


def test_a_condition_that_keeps_events_is_sql_that_runs(reader):
    ours = make.organization()
    EventCursor.objects.create(name=reader.name, xid=2**60)
    assert event_retention.delete_expired_events(ours.pk, clock.now(), 10) == 0


# --- the audit log ----------------------------------------------------------------------------------------------


def test_no_organization_erases_its_event_log(reader):
    """The rule is older than the minimum; nothing younger than the minimum is deleted."""
    ours = make.organization()
    admin = make.admin(ours, "Mallory")
    rule = RetentionRule(organization=ours, what="events", days=1)
    with pytest.raises(ValidationError, match="at least 365 days"):
        rule.full_clean()
    rule.save()
    key, _ = accounts.create_api_key(ours, "stolen", ["manage"], actor=actor_of(admin))
    accounts.revoke_api_key(key.pk, actor=actor_of(admin))
    events.append(ours.pk, "job.created", 1)
    clock.travel(2 * DAY_S)
    catch_up(reader)
    age_all()
    assert kinds() == ["api_key.created", "api_key.revoked", "job.created"]
    clock.travel(364 * DAY_S)
    age_all()
    assert kinds() == ["api_key.created", "api_key.revoked"]


AUDIT = ["membership.added", "membership.changed", "api_key.created", "retention.changed", "person.erased",
         "organization.changed"]  # fmt: skip


def test_audit_events_follow_the_installations_rule_alone(reader, no_floor):
    short, long = make.organization(), make.organization()
    RetentionRule.objects.create(organization=short, what="events", days=1)
    RetentionRule.objects.create(organization=long, what="events", days=1000)
    for organization in (short, long):
        for kind in (*AUDIT, "job.created"):
            events.append(organization.pk, kind, 1)
    clock.travel(399 * DAY_S)
    catch_up(reader)
    age_all()
    assert kinds() == [*AUDIT, *AUDIT, "job.created"]
    clock.travel(2 * DAY_S)
    age_all()
    assert kinds() == [*AUDIT, "job.created"], "the longer rule keeps them longer"
    clock.travel(600 * DAY_S)
    age_all()
    assert kinds() == []


def test_an_installation_that_keeps_events_for_ever_keeps_audit_events(reader, no_floor, settings):
    settings.RETENTION_DAYS = {"events": 0}
    ours = make.organization()
    RetentionRule.objects.create(organization=ours, what="events", days=1)
    for kind in ("api_key.created", "job.created"):
        events.append(ours.pk, kind, 1)
    clock.travel(4000 * DAY_S)
    catch_up(reader)
    age_all()
    assert kinds() == ["api_key.created"]


def test_the_list_of_rules_shows_what_is_in_effect(client, db):
    ours = make.organization()
    RetentionRule.objects.create(organization=ours, what="events", days=1)
    client.force_login(make.admin(ours), backend="django.contrib.auth.backends.ModelBackend")
    assert "365 days" in client.get(reverse("admin:accounts_retentionrule_changelist")).content.decode()


# --- periods that are too long ----------------------------------------------------------------------------------

VERY_LONG = [36_501, 1_000_000, 2_147_483_647]


@pytest.mark.parametrize("days", VERY_LONG)
def test_very_long_period_keeps_rows_forever_and_stops_no_other_deletion(reader, no_floor, settings, days):
    greedy, other = make.organization(), make.organization()
    for what in ("events", "calls"):
        RetentionRule.objects.create(organization=greedy, what=what, days=days)
    for organization in (greedy, other):
        events.append(organization.pk, "job.created", 1)
        events.append(organization.pk, "api_key.created", 1)
    clock.travel(401 * DAY_S)
    catch_up(reader)
    age_all()
    assert {event.organization_id for event in Event.objects.all()} == {greedy.pk}
    settings.RETENTION_DAYS = dict.fromkeys([*retention.kept, *retention.shared], days)
    events.append(other.pk, "api_key.created", 1)
    clock.travel(4000 * DAY_S)
    catch_up(reader)
    age_all()
    assert loops.delete_expired_shared() is None
    assert {event.organization_id for event in Event.objects.all()} == {greedy.pk, other.pk}


@pytest.mark.parametrize("days", VERY_LONG)
def test_admin_refuses_a_very_long_period_and_shows_what_is_in_effect(client, days):
    ours = make.organization()
    client.force_login(make.admin(ours), backend="django.contrib.auth.backends.ModelBackend")
    rule = {"organization": ours.pk, "what": "calls", "days": days}
    refused = client.post(reverse("admin:accounts_retentionrule_add"), rule)
    assert "Must be at most 36500 days, or 0 to keep the data forever." in refused.content.decode()
    RetentionRule.objects.create(organization=ours, what="calls", days=days)
    assert "forever" in client.get(reverse("admin:accounts_retentionrule_changelist")).content.decode()
    client.post(reverse("admin:accounts_retentionrule_add"), {**rule, "what": "jobs", "days": 36_500})
    assert RetentionRule.objects.filter(what="jobs", days=36_500).exists()
