"""Thousands of due rows of one organization are in front, and the one row of another is in the next batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest

from accounts.models import Organization
from dispatch.core import clock
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.services import auditor, reminders
from dispatch.leads.models import Lead
from dispatch.leads.pool_rotation import PoolRotation
from dispatch.telephony import sql
from dispatch.telephony.models import Call
from notifications.services import deliveries, escalation
from tests.core.test_loop_isolation import due_alert, due_delivery, due_text, make_job
from tests.harness.leads import Floor
from tests.support import factories as make
from tests.support.copies import copy_row

pytestmark = pytest.mark.django_db(transaction=True)

ROWS = 10_000
BATCH = 64
_SUBMISSIONS = """, (
    SELECT id AS submission, row_number() OVER (ORDER BY id) AS place FROM jobs_submission
    WHERE id NOT IN (SELECT submission_id FROM jobs_job)
) submissions"""


@dataclass(frozen=True)
class Case:
    """`create` makes a row that is due since a time; `copies` and `source` are those of `copy_row`.

    `take` returns the ids of the rows in one batch. `before` are models whose rows are copied first.
    """

    create: Callable[[Organization, datetime], Any]
    take: Callable[[], list[int]]
    copies: dict[str, str] = field(default_factory=dict)
    source: str = ""
    before: Callable[[Any], None] = lambda row: None


def received(organization: Organization, at: datetime) -> Submission:
    submission: Submission = Submission.objects.create(
        organization=organization, service_type=make.service_type(organization, "plumbing"), form={},
        customer_name="Pat", customer_phone=make.phone(), next_start_at=at,
    )  # fmt: skip
    return submission


def dispatching(organization: Organization, at: datetime) -> Job:
    return make_job(organization, status="dispatching", next_action_at=at)


def paused(organization: Organization, at: datetime) -> Job:
    return make_job(organization, status="dispatching", paused_at=at, attention_at=at)


def copy_submissions(job: Job) -> None:
    assert copy_row(job.submission, ROWS) == ROWS


def call_in(status: str, *times: str) -> Callable[[Organization, datetime], Call]:
    """Return a function that makes a call whose times are all `at`."""

    def create(organization: Organization, at: datetime) -> Call:
        number = make.number(organization)
        call: Call = Call.objects.create(
            organization=organization, purpose="lead", subject_id=1 + organization.pk, attempt=1,
            account=number.account, number=number, pool=number.pool, line_slot=1, pool_slot=1,
            to_phone=make.phone(), from_phone=number.phone, status=status, not_before=at, created_at=at,
            place_by=clock.now() + timedelta(hours=1), sid=None if status == "unknown" else "CA0",
            **dict.fromkeys(times, at),
        )  # fmt: skip
        return call

    return create


def aged(create: Callable[[Organization], Any], name: str) -> Callable[[Organization, datetime], Any]:
    """Return a function that makes a row whose time `name` is `at`."""

    def create_at(organization: Organization, at: datetime) -> Any:
        row = create(organization)
        type(row)._default_manager.filter(pk=row.pk).update(**{name: at})
        return row

    return create_at


def taken_by(owner: Any, name: str, step: Callable[[], Any]) -> list[int]:
    """Return the ids with which a step of a loop calls this function for each row."""
    with mock.patch.object(owner, name, return_value=0) as called:
        step()
    return [call.args[0] for call in called.call_args_list]


def ids(rows: list[sql.DueRow]) -> list[int]:
    return [row.id for row in rows]


_CALL = {
    "subject_id": "1000000 + n", "line_slot": "n + 10", "pool_slot": "n + 10", "sid": "t.sid || n",
    "to_phone": "'+1602' || 7550000 + n",
}  # fmt: skip
_JOB = {"submission_id": "submission", "step_token": "gen_random_uuid()"}
CASES = {
    "submissions": Case(
        received, lambda: taken_by(auditor, "start_job", auditor._start_due_submissions)
    ),
    "overdue jobs": Case(
        dispatching, lambda: taken_by(auditor, "expire_offer", auditor._advance_due_jobs), _JOB, _SUBMISSIONS,
        copy_submissions,
    ),
    "paused jobs": Case(
        paused, lambda: taken_by(reminders, "_remind", reminders.remind_due_jobs), _JOB, _SUBMISSIONS,
        copy_submissions,
    ),
    "emails": Case(
        aged(due_delivery("email"), "next_attempt_at"),
        lambda: taken_by(deliveries, "deliver", lambda: deliveries.deliver_due("email")),
        {"cycle": "1000 + n"},
    ),
    "alerts": Case(
        aged(due_alert, "next_action_at"),
        lambda: taken_by(escalation, "escalate", escalation.escalate_due),
        {"event_id": "1000000 + n", "step_token": "gen_random_uuid()"},
    ),
    "calls to place": Case(
        call_in("created"), lambda: ids(sql.calls_to_place(clock.now(), BATCH)), {**_CALL, "sid": "NULL"}
    ),
    "calls of unknown outcome": Case(
        call_in("unknown", "requested_at", "send_by"),
        lambda: ids(sql.unknown_rows(Call, clock.now(), BATCH, (), ())),
        {**_CALL, "sid": "NULL"},
    ),
    "calls to hang up": Case(
        call_in("answered", "requested_at", "hang_up_at", "cancel_requested_at"),
        lambda: ids(sql.due_hang_ups(clock.now(), BATCH, (), ())),
        _CALL,
    ),
    "calls without an end": Case(
        call_in("answered", "requested_at", "submitted_at", "answered_at"),
        lambda: ids(sql.overdue_ends(clock.now(), clock.now(), BATCH, (), ())),
        _CALL,
    ),
    "texts": Case(
        aged(due_text, "not_before"),
        lambda: ids(sql.texts_to_send(clock.now(), BATCH)),
        {"subject_id": "1000000 + n", "to_phone": "'+1602' || 7550000 + n"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_row_of_a_small_organization_is_in_the_next_batch(name: str) -> None:
    case, now = CASES[name], clock.now()
    greedy, small = make.organization(), make.organization()
    first = case.create(greedy, now - timedelta(hours=1))
    case.before(first)
    assert copy_row(first, ROWS, case.copies, case.source) >= ROWS * 0.99
    own = case.create(small, now - timedelta(minutes=30))
    taken = case.take()
    assert own.pk in taken, f"{len(taken)} rows, without it"
    assert len(taken) >= 50, "the rows of the other are due too"


def test_the_lead_of_a_small_organization_is_in_the_second_claim() -> None:
    greedy, small = Floor(lines=500), Floor()
    greedy.add_many(500)
    (own,) = small.add(make.phone())
    with ExitStack() as stack:
        greedy.promote()
        rotation = PoolRotation()
        stack.callback(greedy.stop)
        for _ in range(2):
            rotation.claim_batch("tester", lambda _: 10, lambda _: None)
    assert Lead.objects.get(pk=own).attempts == 1
