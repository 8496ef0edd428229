"""The condition of each loop that rests holds for work of which nothing notified the loop, and for nothing else.

A lost notification is therefore repaired as soon as without conditions, at the interval of the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models import Model

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.events import append
from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.loops import Loop, all_loops
from dispatch.outbox.models import Message, MessageGroup
from dispatch.schedules.models import BulkImport, Run
from dispatch.telephony.models import Call
from tests.core import test_loop_isolation as isolation
from tests.support import factories as make
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db  # nothing commits, so nothing is notified

# Creates what the loop need not do, and returns a function that makes it due.
Work = Callable[[Organization], Callable[[], object]]


def past() -> datetime:
    return clock.now() - timedelta(minutes=1)


def later() -> datetime:
    return clock.now() + timedelta(days=1)


def call(**due: Any) -> Work:
    def create(organization: Organization) -> Callable[[], object]:
        number = make.number(organization)
        row = Call.objects.create(
            organization=organization, purpose="offer", subject_id=organization.pk, attempt=1,
            account=number.account, number=number, pool=number.pool, line_slot=1, pool_slot=1, status="created",
            to_phone=make.phone(), from_phone=number.phone, not_before=later(), place_by=later(), sid="CA1",
        )  # fmt: skip
        return lambda: Call.objects.filter(pk=row.pk).update(**due)

    return create


def changed(model: type[Model], *, before: dict[str, Any], due: dict[str, Any]) -> Work:
    def create(organization: Organization) -> Callable[[], object]:
        people = make.admin(organization), make.dispatcher(organization)
        row = Tenant("Acme", organization, *people, key="").row(model)
        same = model._default_manager.filter(pk=row.pk)
        same.update(**before)
        return lambda: same.update(**due)

    return create


def message(**due: Any) -> Work:
    return changed(Message, before={"status": "COMPLETED", "in_flight": False, "ended_at": past()}, due=due)


def run(**due: Any) -> Work:
    return changed(Run, before={}, due={"ended_at": None, **due})


def job(**fields: Any) -> Work:
    return lambda organization: lambda: isolation.make_job(organization, **fields)


def event(kind: str) -> Work:
    return lambda organization: lambda: append(organization.pk, kind, organization.pk, name="x")


def case(name: str) -> Work:
    """Use the work of the tests of isolation."""
    of_loop = isolation.CASES[name]
    return lambda organization: lambda: of_loop.begin(of_loop.create(organization))


WORK: dict[str, list[Work]] = {
    "audit_log": [event("organization.changed")],
    "placer": [call(not_before=past()), call(place_by=past())],
    "calls_hang_up": [call(hang_up_at=past())],
    "jobs_auditor": [
        job(status="dispatching", next_action_at=past()),
        job(status="cancelled", is_trial=True),
        job(status="pending", pending_reason="provider_down"),
        job(status="pending", pending_reason="spend_cap"),
    ],
    "jobs_waiting": [job(status="dispatching", waiting_for="line", next_action_at=past())],
    "leads_sweep": [lambda organization: lambda: isolation.released_lead(organization)],
    "outbox_poller": [
        changed(MessageGroup, before={"wake_at": None}, due={"wake_at": past()}),
        message(status="PENDING", mode="IMMEDIATE"),
    ],
    "outbox_leases": [
        message(status="QUEUED", queued_at=past(), in_flight=True),
        message(status="PROCESSING", lease_until=past(), in_flight=True),
        message(status="PENDING", expires_at=past()),
    ],
    "outbox_reader": [event("job.created")],
    "notifier": [event("job.pending")],
    "schedules_reconciler": [
        run(status="in_progress", taken_at=past()),
        run(status="running", lease_until=past()),
        run(status="retrying", waiting_for="concurrency"),
        changed(BulkImport, before={"status": "done"}, due={"status": "running"}),
    ],
}


def resting_loops() -> dict[str, Loop]:
    return {loop.name: loop for loop in all_loops() if isinstance(loop, Loop) and loop.due}


@pytest.mark.parametrize("name", resting_loops())
def test_condition_holds_for_work_without_a_notification(name: str) -> None:
    loop = resting_loops()[name]
    checks = DueChecks([loop])
    while checks.find_due([name]):  # a reader that has no cursor yet
        loop.step()
    for number, create in enumerate(WORK.get(name) or [case(name)]):
        with transaction.atomic():
            make_due = create(make.organization())
            assert not checks.find_due([name]), f"before work {number}"
            make_due()
            assert checks.find_due([name]), f"work {number}"
            transaction.set_rollback(True)
