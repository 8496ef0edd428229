"""The demo company has a believable past and open work, and nothing happens because of its past."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.db import models

from accounts.models import Organization, User
from dispatch.capacity.models import DispatchPool
from dispatch.console.board.attention import find_attention
from dispatch.console.board.cards import state_of
from dispatch.console.board.filters import Filters
from dispatch.console.leads.queries import load_overview
from dispatch.console.reports.statistics import build_report
from dispatch.console.schedules.calendar import month_of
from dispatch.core import clock
from dispatch.core.models import Event, EventCursor
from dispatch.core.runtime.loops import Loop, all_loops
from dispatch.dev.demo import history, seed
from dispatch.jobs.models import Candidate, Job, JobNote, Offer, Submission
from dispatch.jobs.timeline import _WORDS, load_timeline
from dispatch.leads.models import Campaign, Lead
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import Attempt, Endpoint, Message, MessageGroup
from dispatch.schedules.models import Run, Schedule
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from notifications.models import Alert, Claim, Delivery, Notification
from tests.support.row_snapshots import written_once

MODELS = (
    Alert, Attempt, Call, Campaign, Candidate, Claim, Delivery, Endpoint, Event, Job, Lead, Message, MessageGroup,
    Notification, Offer, Run, Schedule, Submission, Technician, Text,
)  # fmt: skip
RECEIVER = "http://127.0.0.1:8000/demo-receiver/"


@pytest.fixture
def company(transactional_db) -> Organization:
    return written_once("demo company", filled_company)


def filled_company() -> Organization:
    organization = seed.seed()
    assert history.fill(organization, RECEIVER)
    return organization


def rows_of(*kinds: type[models.Model]) -> dict[str, list[dict]]:
    return {model.__name__: list(model._default_manager.order_by("pk").values()) for model in kinds}


def test_filling_twice_changes_nothing(company):
    before = rows_of(*MODELS)
    assert not history.fill(company, RECEIVER)
    call_command("seed_demo", if_empty=True, history=True, verbosity=0)
    after = rows_of(*(model for model in MODELS if model not in (Endpoint, Event)))
    assert after == {name: rows for name, rows in before.items() if name in after}
    assert Event.objects.exclude(subject_type="endpoint").count() == len(
        [row for row in before["Event"] if row["subject_type"] != "endpoint"]
    )


def test_organization_with_work_gets_no_history(transactional_db):
    organization = seed.seed()
    Campaign.objects.create(
        organization=organization, code="own", name="Own", pool=DispatchPool.objects.of(organization).get()
    )
    assert not history.fill(organization, RECEIVER)
    assert not Job.objects.exists()


def test_every_open_state_is_present(company):
    open_jobs = Job.objects.of(company).filter(ended_at=None).select_related("technician", "organization")
    states = Counter(state_of(job)[1] for job in open_jobs)
    assert {"Assigned", "Started", "Not started", "Paused"} <= set(states)
    reasons = set(open_jobs.filter(status="pending").values_list("pending_reason", flat=True))
    assert reasons == {"exhausted", "nobody_near", "no_position"}
    attention = find_attention(company, Filters({}))
    assert "texted" in {item.tone for item in attention.items}
    assert [item for item in attention.items if item.claim], "somebody has claimed a job"
    dispatcher = User.objects.get(email="dispatcher@demo.example")
    alerts = [row for row in Notification.objects.filter(user=dispatcher) if row.is_open_alert]
    assert [row.title.partition(": ")[2] for row in alerts] == ["Nobody accepted"]
    counts = dict(Technician.objects.of(company).values_list("pk", "open_jobs"))
    assigned = Counter(open_jobs.filter(status="assigned").values_list("technician_id", flat=True))
    assert {pk: n for pk, n in counts.items() if n} == assigned


def test_notes_are_on_open_jobs_and_one_mentions_the_dispatcher(company):
    notes = JobNote.objects.of(company).select_related("author", "job")
    assert len(notes) == 5
    assert {note.job.ended_at for note in notes} == {None}
    assert {note.author.email for note in notes} == {"dispatcher@demo.example", "night@demo.example"}
    (mentioning,) = [note for note in notes if note.mentions]
    row = Notification.objects.get(kind="job.note_written")
    assert (row.user.email, row.read_at) == ("dispatcher@demo.example", None)
    assert row.title == f"Noor Haddad mentioned you in a note on job {mentioning.job_id}"
    assert [entry.text for entry in load_timeline(mentioning.job)][-1] == "Noor Haddad wrote a note"


def test_reports_show_a_believable_past(company):
    today = clock.now().astimezone(ZoneInfo(company.time_zone)).date()
    report = build_report(company, today - timedelta(days=44), today - timedelta(days=1))
    assert all(day.jobs >= 3 for day in report.days)
    assert 700 < report.total.jobs < 2000
    assert 0.9 < report.total.assigned / report.total.jobs < 1
    assert 0.4 < report.total.acceptance < 0.9
    assert 0.01 < report.total.exhaustion < 0.12
    assert 10 < report.total.median_s < 120
    assert report.total.p90_s < 1200
    assert len(report.services) >= 6
    by_weekday = Counter()
    for day in report.days:
        by_weekday[day.day.weekday()] += day.jobs
    assert by_weekday[0] > by_weekday[6] * 1.5
    hours = Counter(job.created_at.astimezone(ZoneInfo(company.time_zone)).hour for job in Job.objects.of(company))
    assert sum(hours[hour] for hour in range(7, 19)) > 0.7 * sum(hours.values())


def test_timelines_tell_each_job_in_order(company):
    for status in ("completed", "cancelled", "pending", "assigned"):
        jobs = list(Job.objects.of(company).filter(status=status).order_by("pk")[:5])
        assert jobs, status
        for job in jobs:
            entries = load_timeline(job)
            assert [entry.at for entry in entries] == sorted(entry.at for entry in entries)
            assert entries[0].kind == "submission.received"
            assert f"job.{status}" in {entry.kind for entry in entries}
            assert {entry.kind for entry in entries} <= set(_WORDS)
            if job.status == "completed" and job.assigned_at:
                assert {"job.assigned", "job.started"} <= {entry.kind for entry in entries}
                assert job.created_at < job.assigned_at < job.started_at < job.ended_at < clock.now()


def test_pages_of_campaigns_schedules_and_outbox_show_something(company):
    overview = load_overview(company)
    assert len(overview.campaigns) == 2
    assert all(row.finished > 100 and row.waiting > 100 and row.answered for row in overview.campaigns)
    month = month_of(company, "")
    days = [day for week in month.weeks for day in week]
    assert any(day.coming for day in days)
    assert sum(day.ran.get("succeeded", 0) for day in days) > 10
    assert Schedule.objects.of(company).filter(status="paused").count() == 1
    (group,) = MessageGroup.objects.of(company).exclude(blocked_by=None)
    waiting = group.messages.filter(status="PENDING").order_by("pk")
    assert waiting.count() == 4
    assert f"#{group.blocked_by}" in why_stuck(waiting[0]) or str(group.blocked_by) in why_stuck(waiting[0])
    assert "unknown_tax_code" in Attempt.objects.get(message_id=group.blocked_by).answer
    assert Message.objects.of(company).filter(status="COMPLETED").count() > 300


def test_nothing_happens_because_of_the_past(company):
    kinds = (Alert, Attempt, Call, Claim, Delivery, Job, Message, MessageGroup, Notification, Offer, Text)
    before = rows_of(*kinds)
    finished = Lead.objects.filter(status="finished").count()
    for minutes in (0, 1, 30):
        clock.travel(minutes * 60)
        for loop in all_loops():
            if isinstance(loop, Loop):
                loop.step()
    after = rows_of(*kinds)
    # Only the first difference of each kind is shown: a comparison of all rows would take minutes.
    changed = {
        name: [pair for pair in zip(before[name], after[name], strict=False) if pair[0] != pair[1]][:1]
        for name in before
    }
    assert {name: len(rows) for name, rows in after.items()} == {name: len(rows) for name, rows in before.items()}
    assert not any(changed.values()), changed
    assert Lead.objects.filter(status="finished").count() == finished
    assert not Event.objects.filter(xid=history.rows.BEFORE_ALL_READERS).exclude(at__lte=clock.now()).exists()
    assert EventCursor.objects.exists(), "readers have run"
