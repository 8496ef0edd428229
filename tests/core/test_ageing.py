"""Jobs, leads, sessions and the admin's log are deleted after their period; open rows and young ones stay."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session

from accounts import loops
from accounts.models import RetentionRule
from dispatch.core import clock
from dispatch.core.models import ReplayEntry
from dispatch.core.privacy import replay, retention
from dispatch.jobs.models import Candidate, Job, JobNote, JobText, Offer, Submission
from dispatch.leads.models import DoNotCall, Lead
from tests.support import factories as make
from tests.support.tenants import Tenant, ours, theirs, world

__all__ = ["ours", "theirs", "world"]
pytestmark = pytest.mark.django_db
DAY_S = 86_400


def delete(what: str, of: Tenant) -> int:
    kept = retention.kept[what]
    before = clock.now() - timedelta(days=retention.effective_days(what))
    return kept.delete_batch(of.organization.pk, before, loops.BATCH)


def test_ended_jobs_go_with_all_that_belongs_to_them(ours: Tenant, theirs: Tenant) -> None:
    ended = {"ended_at": clock.now(), "status": "cancelled", "pending_reason": "", "waiting_for": ""}
    for of in (ours, theirs):
        Job.objects.of(of.organization).update(**ended)
        assert delete("jobs", of) == 0
    clock.travel(731 * DAY_S)
    young = Submission.objects.create(
        organization=ours.organization, status="processed", form={}, customer_name="Young",
        customer_phone=make.phone(), service_type=ours.row(Submission).service_type,
    )  # fmt: skip
    Job.objects.create(
        organization=ours.organization, submission=young, service_type=young.service_type, status="cancelled",
        customer_name="Young", customer_phone=young.customer_phone, ended_at=clock.now(),
    )  # fmt: skip
    assert delete("jobs", ours) == 1
    for model in (Offer, Candidate, JobText, JobNote):
        assert not model.objects.of(ours.organization).exists(), model
    assert Submission.objects.of(ours.organization).get() == young
    assert Job.objects.of(theirs.organization).exists(), "each organization has its own rule"


def test_open_jobs_stay_whatever_their_age(ours: Tenant) -> None:
    clock.travel(5000 * DAY_S)
    assert delete("jobs", ours) == 0
    assert Job.objects.of(ours.organization).exists()


def test_a_full_batch_of_jobs_asks_for_another_pass(ours: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    from dispatch.jobs import retention as job_retention

    monkeypatch.setattr(job_retention, "MAX_BATCH", 1)
    Job.objects.of(ours.organization).update(
        ended_at=clock.now(), status="cancelled", pending_reason="", waiting_for=""
    )
    clock.travel(731 * DAY_S)
    assert delete("jobs", ours) == loops.BATCH
    assert delete("jobs", ours) == 0


def test_finished_leads_go_and_do_not_call_entries_stay(ours: Tenant) -> None:
    clock.travel(401 * DAY_S)
    assert delete("leads", ours) == 0, "it is not finished"
    Lead.objects.of(ours.organization).update(
        status="finished", outcome="answered", finished_at=clock.now() - timedelta(days=401)
    )
    assert delete("leads", ours) == 1
    assert DoNotCall.objects.of(ours.organization).exists()


def test_no_rule_deletes_jobs_before_idempotency_keys_end(ours: Tenant) -> None:
    rule = RetentionRule(organization=ours.organization, what="jobs", days=1)
    assert retention.effective_days("jobs", rule.days) == 7


def test_rows_of_the_installation_follow_its_rule_alone(ours: Tenant, settings: Any) -> None:
    Session.objects.all().delete()
    now = clock.now()
    for name, days in (("old", 3), ("new", 0)):
        Session.objects.create(session_key=name, session_data="", expire_date=now - timedelta(days=days))
    for days in (500, 300):
        entry = LogEntry.objects.create(user=ours.admin, object_repr=f"{days}", action_flag=1)
        LogEntry.objects.filter(pk=entry.pk).update(action_time=now - timedelta(days=days))
        replay.record(ours.organization.pk, replay.OPT_OUT, make.phone())
        ReplayEntry.objects.filter(at__gt=now - timedelta(days=1)).update(at=now - timedelta(days=days))
    ReplayEntry.objects.create(
        uid="12345678123456781234567812345678", kind=replay.OPT_OUT, at=now - timedelta(days=500), is_pending=True
    )
    loops.delete_expired_shared()
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]
    assert list(LogEntry.objects.values_list("object_repr", flat=True)) == ["300"]
    assert [entry.is_pending for entry in ReplayEntry.objects.order_by("at")] == [True, False], "pending ones act"
    settings.RETENTION_DAYS = {"admin_log": 0, "sessions": 0}
    clock.travel(5000 * DAY_S)
    loops.delete_expired_shared()
    assert (Session.objects.count(), LogEntry.objects.count()) == (1, 1)


def test_one_failure_stops_no_other_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(before: Any, limit: int) -> int:
        raise RuntimeError("no")

    monkeypatch.setattr(
        retention, "shared", {"broken": retention.SharedKind("broken", 1, broken), **retention.shared}
    )
    Session.objects.create(session_key="old", session_data="", expire_date=clock.now() - timedelta(days=3))
    loops.delete_expired_shared()
    assert not Session.objects.filter(session_key="old").exists()
