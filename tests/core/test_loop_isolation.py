"""In no loop does a poison row or a locked row of one organization stop the work for another.

Each loop of the registry either has a case here, with rows of three organizations, or names the tests that prove
it, or has no rows of organizations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from unittest import mock

import pytest
from allauth.usersessions.models import UserSession
from django.apps import apps
from django.db import DatabaseError, connection, connections

from accounts.auth import security_mail
from accounts.models import Membership, Organization, ReportSubscription, SecurityMail
from accounts.scoping import OwnedModel
from dispatch.capacity.models import ProviderAccount
from dispatch.console.reports import report_mail
from dispatch.core import clock
from dispatch.core.audit import chain
from dispatch.core.crypto import EncryptedJSONField, EncryptedTextField
from dispatch.core.db import lock_waits
from dispatch.core.events import SYSTEM, append
from dispatch.core.models import AuditAnchor, AuditSeal
from dispatch.core.privacy import retention
from dispatch.core.runtime.loops import Loop, all_loops, find_loop
from dispatch.jobs.models import Job, Submission, TechnicianNotice
from dispatch.jobs.services import auditor, notice_delivery
from dispatch.leads.models import Lead
from dispatch.leads.services import switches
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, CallEvent, SpendCap, Text
from dispatch.telephony.services import inbound, keys, probes, spend_caps
from notifications import escalation_rules
from notifications.models import Alert, AlertChannel, Delivery, Notification, PushMessage, PushSubscription
from notifications.services import chat_deliveries, deliveries, push_deliveries
from tests.core.test_failures_page import defined_in
from tests.harness.leads import Floor
from tests.support import factories as make
from tests.support import patient_batches
from tests.support.row_locks import ends_while_held
from tests.support.tenants import tenant
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

HERE = "tests/core/test_loop_isolation.py"
LOCK_WAIT = "SET lock_timeout = '300ms'"
LOCK_WAIT_AS_BEFORE = "RESET lock_timeout"  # other tests get the connection from the pool


@dataclass(frozen=True)
class Case:
    """The work of a loop for one organization.

    `create` makes a row that is due. `is_done` says whether the loop has done its work. `poison` makes it fail, by
    its data or as long as the returned context is entered. `begin` runs for each row when all are there.
    """

    create: Callable[[Organization], Any]
    is_done: Callable[[Any], bool]
    poison: Callable[[Any], Any] = lambda row: nullcontext()
    begin: Callable[[Any], None] = lambda row: None


def fails_for(owner: Any, name: str, is_bad: Callable[..., bool]) -> Any:
    """Let a function fail for arguments that are bad."""
    real = getattr(owner, name)

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_bad(*args, **kwargs):
            raise ValueError("poison")
        return real(*args, **kwargs)

    return mock.patch.object(owner, name, run)


def unknown_zone(organization: Organization) -> None:
    """Store a time zone that this machine does not know, as an upgrade of the zones may leave behind."""
    Organization.objects.filter(pk=organization.pk).update(time_zone="Nowhere/Land")


def broken_zone(row: Any) -> Any:
    unknown_zone(row.organization)
    return nullcontext()


def unreadable_token(row: ProviderAccount) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("UPDATE capacity_provideraccount SET auth_token = 'unreadable' WHERE id = %s", [row.pk])
    return nullcontext()


# --- Rows


def make_job(organization: Organization, **fields: Any) -> Job:
    trade = make.service_type(organization, "plumbing")
    common = {"customer_name": "Pat", "customer_phone": make.phone(), "service_type": trade}
    submission = Submission.objects.create(organization=organization, status="processed", form={}, **common)
    job: Job = Job.objects.create(organization=organization, submission=submission, **common, **fields)
    return job


def due_notice(organization: Organization) -> TechnicianNotice:
    notice: TechnicianNotice = TechnicianNotice.objects.create(
        organization=organization, job=make_job(organization, status="cancelled"),
        technician=make.technician(organization), news="cancelled", alert_at=clock.now(),
        next_action_at=clock.now(),
    )  # fmt: skip
    return notice


def due_alert(organization: Organization) -> Alert:
    make.dispatcher(organization)
    plan = escalation_rules.Plan(60, 60, ())
    alert: Alert = Alert.objects.create(
        organization=organization, event_id=organization.pk, kind="job.pending", title="x", subject_type="job",
        subject_id=organization.pk, plan=plan.to_json(), next_action_at=clock.now(),
        next_repeat_at=clock.now() + timedelta(hours=1),
    )  # fmt: skip
    return alert


def due_delivery(channel: str) -> Callable[[Organization], Delivery]:
    def create(organization: Organization) -> Delivery:
        notice = Notification.objects.create(
            organization=organization, user=make.dispatcher(organization), event_id=organization.pk,
            kind="job.pending", title="x", subject_type="job", subject_id=organization.pk,
        )  # fmt: skip
        row: Delivery = Delivery.objects.create(
            organization=organization, notification=notice, channel=channel, next_attempt_at=clock.now()
        )
        return row

    return create


def due_chat(organization: Organization) -> Delivery:
    """Return a delivery to a channel that was removed: it is dropped."""
    row = due_delivery("chat")(organization)
    row.destination = AlertChannel.objects.create(
        organization=organization, user=row.notification.user, kind="webhook", name="x", removed_at=clock.now()
    )
    row.save(update_fields=["destination"])
    return row


def failing_chat(bad: Delivery) -> Any:
    return fails_for(chat_deliveries, "is_needed", lambda notification: notification.pk == bad.notification_id)


def due_push(organization: Organization) -> PushMessage:
    """Return a message to a browser of someone who is no member any longer: it is dropped."""
    subscription = PushSubscription.objects.create(
        organization=organization, user=make.user(f"Former {organization.pk}"), name="x", host="x", endpoint="x"
    )
    row: PushMessage = PushMessage.objects.create(
        organization=organization, subscription=subscription, purpose="test", subject_id=1,
        expires_at=clock.now() + timedelta(hours=1),
    )  # fmt: skip
    return row


def failing_push(bad: PushMessage) -> Any:
    return fails_for(push_deliveries, "_claim", lambda pk: pk == bad.pk)


def failing_delivery(bad: Delivery) -> Any:
    return fails_for(deliveries, "is_needed", lambda notification: notification.pk == bad.notification_id)


def counted_cap(organization: Organization) -> SpendCap:
    cap: SpendCap = SpendCap.objects.create(organization=organization, amount=10)
    SpendCap.objects.filter(pk=cap.pk).update(counted_at=None)
    return cap


def capped_job(organization: Organization) -> Job:
    """Return a job that the spending cap stopped. The cap allows calls again."""
    cap = SpendCap(organization=organization, amount=10)
    spend_caps.save_cap(cap, {"amount": 10}, actor=SYSTEM)
    return make_job(organization, status="pending", pending_reason="spend_cap", waiting_since=clock.now())


def paused_job(organization: Organization) -> Job:
    past = clock.now() - timedelta(minutes=1)
    return make_job(organization, status="dispatching", paused_at=past, attention_at=past)


def drifted_technician(organization: Organization) -> Technician:
    technician = make.technician(organization)
    Technician.objects.filter(pk=technician.pk).update(open_jobs=3)
    return technician


def due_mail(organization: Organization) -> SecurityMail:
    return SecurityMail.objects.create(user=make.dispatcher(organization), kind="password_changed")


def due_report(organization: Organization) -> ReportSubscription:
    now = clock.now()
    member = Membership.objects.get(user=make.dispatcher(organization))
    row: ReportSubscription = ReportSubscription.objects.create(
        organization=organization, membership=member, report="overview", due_at=now, next_attempt_at=now
    )
    return row


def old_session(organization: Organization) -> UserSession:
    session: UserSession = UserSession.objects.create(
        user=make.dispatcher(organization), session_key=f"key-{organization.pk}", ip="10.0.0.1"
    )
    UserSession.objects.filter(pk=session.pk).update(last_seen_at=clock.now() - timedelta(days=40))
    return session


def released_lead(organization: Organization) -> Lead:
    """Return a lead that waits for a campaign that is no longer paused."""
    floor = Floor()
    (lead_id,) = floor.add(make.phone())
    Lead.objects.filter(pk=lead_id).update(reason="campaign_paused", status="backlog")
    return Lead.objects.get(pk=lead_id)


def failing_account(organization: Organization) -> ProviderAccount:
    account = make.account(organization)
    ProviderAccount.objects.filter(pk=account.pk).update(
        outage="no_answer", outage_since=clock.now(), probe_at=clock.now(), has_failed_probe=True
    )
    return account


def due_text(organization: Organization) -> Text:
    number = make.number(organization, sends_texts=True)
    text: Text = Text.objects.create(
        organization=organization, purpose="test", subject_id=organization.pk, account=number.account,
        number=number, to_phone=make.phone(), from_phone=number.phone, body="x",
        not_after=clock.now() + timedelta(minutes=5),
    )  # fmt: skip
    return text


def unreadable_account(row: Text) -> Any:
    return unreadable_token(row.account)


def audited(organization: Organization) -> AuditAnchor:
    append(organization.pk, "organization.changed", organization.pk, name="x")
    chain.READER.step()
    anchor: AuditAnchor = AuditAnchor.objects.get(pk=organization.pk)
    return anchor


def changed(anchor: AuditAnchor) -> None:
    append(anchor.pk, "organization.changed", anchor.pk, name="y")


def unanchored(anchor: AuditAnchor) -> Any:
    AuditAnchor.objects.filter(pk=anchor.pk).update(keyed_hash="forged")
    return nullcontext()


def stored_key(organization: Organization) -> CallEvent:
    """Return an event of a call that the loop must apply, and that contains no key."""
    number = make.number(organization)
    call = Call.objects.create(
        organization=organization, purpose="offer", subject_id=organization.pk, attempt=1, account=number.account,
        number=number, pool=number.pool, line_slot=1, pool_slot=1, to_phone=make.phone(), from_phone=number.phone,
        status="answered", place_by=clock.now(),
    )  # fmt: skip
    event: CallEvent = CallEvent.objects.create(
        organization=organization, call=call, key="1", kind="gather", payload={}, next_action_at=clock.now()
    )
    return event


def received_text(organization: Organization) -> Text:
    number = make.number(organization)
    text: Text = Text.objects.create(
        organization=organization, direction="in", purpose="", account=number.account, number=number,
        to_phone=number.phone, from_phone=make.phone(), body="Hello", status="received", sid=f"SM{number.pk}",
        not_after=clock.now(),
    )  # fmt: skip
    Text.objects.filter(pk=text.pk).update(created_at=clock.now() - timedelta(minutes=1))
    return text


def reload(row: Any) -> Any:
    return type(row)._default_manager.get(pk=row.pk)


CASES: dict[str, Case] = {
    "spend_caps": Case(counted_cap, lambda cap: reload(cap).counted_at is not None, broken_zone),
    "jobs_auditor": Case(
        capped_job, lambda job: reload(job).pending_reason == "", broken_zone
    ),
    "jobs_reminders": Case(
        paused_job,
        lambda job: reload(job).reminded_at is not None,
        lambda bad: fails_for(auditor.transitions, "append_job_event", lambda job, *_, **__: job.pk == bad.pk),
    ),
    "jobs_technician_repair": Case(
        drifted_technician,
        lambda technician: reload(technician).open_jobs == 0,
        lambda bad: fails_for(auditor.technicians, "repair_technician", lambda pk, *_: pk == bad.pk),
    ),
    "security_mail": Case(
        due_mail,
        lambda row: not SecurityMail.objects.filter(pk=row.pk).exists(),
        lambda bad: fails_for(security_mail, "render_mail", lambda row: row.pk == bad.pk),
    ),
    "report_mail": Case(
        due_report,
        lambda row: reload(row).sent_at is not None,
        lambda bad: fails_for(report_mail, "build_message", lambda row, *_: row.pk == bad.pk),
    ),
    "forget_sign_ins": Case(old_session, lambda row: not UserSession.objects.filter(pk=row.pk).exists()),
    "leads_lifted": Case(
        released_lead,
        lambda lead: reload(lead).reason == "",
        lambda bad: fails_for(
            switches, "release_leads", lambda *_, campaign_id, **__: campaign_id == bad.campaign_id
        ),
    ),
    "jobs_notices": Case(
        due_notice,
        lambda notice: reload(notice).status == "unreached",
        lambda bad: fails_for(notice_delivery, "_continue", lambda job, *_: job.pk == bad.job_id),
    ),
    "notifications_escalation": Case(
        due_alert,
        lambda alert: reload(alert).step_token != alert.step_token,
        lambda bad: Alert.objects.filter(pk=bad.pk).update(plan={"steps": "x"}) and nullcontext(),
    ),
    "notifications_email": Case(
        due_delivery("email"), lambda row: reload(row).status != "waiting", failing_delivery
    ),
    "notifications_phone": Case(
        due_delivery("sms"), lambda row: reload(row).status != "waiting", failing_delivery
    ),
    "notifications_chat": Case(due_chat, lambda row: reload(row).status == "dropped", failing_chat),
    "notifications_push": Case(due_push, lambda row: reload(row).status == "dropped", failing_push),
    "calls_keys": Case(
        stored_key,
        lambda event: reload(event).next_action_at is None,
        lambda bad: fails_for(keys, "_apply", lambda event: event.pk == bad.pk),
    ),
    "texts_reconciler": Case(
        received_text,
        lambda text: reload(text).handled_at is not None,
        lambda bad: fails_for(inbound, "_process_one", lambda pk: pk == bad.pk),
    ),
    "texts": Case(due_text, lambda text: reload(text).requested_at is not None, unreadable_account),
    "account_probes": Case(failing_account, lambda account: reload(account).outage == "", unreadable_token),
    "audit_log": Case(
        audited,
        lambda anchor: AuditSeal.objects.filter(organization_id=anchor.pk).count() >= 2,
        unanchored,
        changed,
    ),
}  # fmt: skip


class Proof(NamedTuple):
    """The tests that prove the isolation of a loop: from poison rows, and from locked rows."""

    poison: str
    locked: str


_SECRETS = f"{HERE}::test_no_loop_fails_if_an_organizations_secrets_cannot_be_read"
_LOCKED = f"{HERE}::test_no_loop_fails_if_all_rows_of_an_organization_are_locked"
_CALLS = Proof(
    "tests/telephony/test_reconciling.py::test_an_account_that_cannot_be_read_stops_no_other",
    "tests/core/test_locked_rows.py::test_a_locked_call_delays_no_other_in_the_reconcilers",
)
_QUEUED_LEADS = Proof(
    "tests/leads/test_failing_leads.py::test_a_pool_that_cannot_be_claimed_from_holds_up_no_other",
    "tests/leads/test_locked_rows.py::test_locked_leads_do_not_hold_up_a_batch",
)
_EVENT_FAILS = "tests/core/test_failed_events.py::test_failing_event_does_not_stop_its_reader"
# Loops whose isolation other tests prove. Where one statement handles the batch, no value of a row can fail.
PROVEN: dict[str, Proof] = {
    "placer": Proof(
        "tests/telephony/test_placing.py::test_failing_call_delays_no_other_and_no_later_pass",
        "tests/core/test_locked_rows.py::test_a_locked_call_delays_no_other_call",
    ),
    "prices": Proof("tests/telephony/test_prices.py::test_account_that_fails_delays_no_other", _LOCKED),
    "number_health": Proof(
        "tests/telephony/test_number_health.py::test_unreadable_account_of_another_organization_stops_no_judgment",
        _LOCKED,
    ),
    "calls_cut_off": _CALLS,
    "calls_unknown": _CALLS,
    "calls_hang_up": _CALLS,
    "calls_end": _CALLS,
    "jobs_waiting": Proof(
        "tests/jobs/test_auditor.py::test_repeatedly_failing_step_is_postponed_then_handed_to_dispatcher",
        "tests/jobs/test_held_rows.py::test_a_held_waiting_job_does_not_stop_those_that_wait",
    ),
    "leads_dialer": _QUEUED_LEADS,
    "leads_promoter": _QUEUED_LEADS,
    "leads_stale": Proof(
        "tests/leads/test_stale_claims.py::test_failing_claim_does_not_stop_others",
        "tests/leads/test_stale_claims.py::test_claim_with_a_locked_row_is_skipped",
    ),
    "outbox_poller": Proof(
        _SECRETS, "tests/outbox/test_locked_rows.py::test_the_poller_passes_over_a_message_that_is_held"
    ),
    "outbox_reader": Proof(
        _EVENT_FAILS, "tests/outbox/test_event_reader.py::test_the_reader_does_not_wait_for_a_locked_group"
    ),
    "outbox_leases": Proof(
        _SECRETS, "tests/outbox/test_locked_rows.py::test_recovery_passes_over_groups_that_are_held"
    ),
    "outbox_stale": Proof(
        _SECRETS,
        "tests/outbox/test_locked_rows.py::test_lapsed_and_expired_messages_pass_over_what_is_held",
    ),
    "outbox_router": Proof(
        "tests/outbox/test_unreadable.py::test_an_unreadable_endpoint_fails_alone",
        "tests/outbox/test_locked_rows.py::test_results_of_other_groups_are_written",
    ),
    "schedules_executor": Proof(
        "tests/schedules/test_one_bad_run.py::test_a_run_that_breaks_fails_alone",
        "tests/schedules/test_one_bad_run.py::test_start_skips_a_locked_run",
    ),
    "schedules_reconciler": Proof(
        "tests/schedules/test_one_bad_run.py::test_headers_that_cannot_be_read_do_not_stop_the_reconciler",
        "tests/schedules/test_one_bad_run.py::test_reconciler_skips_locked_runs",
    ),
    "schedules_calendars": Proof(
        _SECRETS, "tests/schedules/test_calendars.py::test_a_held_calendar_delays_no_other"
    ),
    "schedules_time_zones": Proof(
        "tests/schedules/test_time_zones.py::test_unreadable_headers_and_a_failing_schedule_stop_no_walk", _LOCKED
    ),
    "notifier": Proof(
        _EVENT_FAILS, "tests/core/test_failed_events.py::test_event_whose_row_is_locked_waits_alone"
    ),
    "retention": Proof(f"{HERE}::test_kinds_of_retention_fail_alone", _LOCKED),
}
# Loops that handle no rows of organizations, and why.
WITHOUT_ROWS = {
    "redis_generation": "one key of the installation",
    "reachability": "rows of processes",
    "lines": "Redis alone is written, from one read of all open calls",
    "leads_near": "Redis alone is written, from reads without locks",
    "leads_sweep": "Redis alone is written, from reads without locks",
    "leads_workers": "Redis alone is written, from reads without locks",
    "schedules_shards": "leases of processes",
    "replay_list": "one file of the installation",
    "shared_retention": "rows of the installation",
    "heartbeat": "one request for the installation",
}


def test_every_loop_is_proven() -> None:
    names = {loop.name for loop in all_loops()}
    listed = [*CASES, *PROVEN, *WITHOUT_ROWS]
    assert sorted(listed) == sorted(names)
    tests = [test.partition("::") for proof in PROVEN.values() for test in proof]
    assert [f"{path}::{name}" for path, _, name in tests if name not in defined_in(path)] == []


@pytest.mark.parametrize("name", CASES)
def test_bad_rows_of_an_organization_stop_no_other(
    name: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case, loop = CASES[name], find_loop(name)
    settings.SIMULATOR_URL = "http://127.0.0.1:9"
    monkeypatch.setattr(probes, "_failure_of", lambda account: account.auth_token and None)
    organizations = [make.organization() for _ in range(3)]
    rows = [case.create(organization) for organization in organizations]
    for row in rows:
        case.begin(row)
    bad, locked, good = rows

    def step() -> None:
        with connections["default"].cursor() as cursor:
            cursor.execute(LOCK_WAIT)
            try:
                loop.step()
            finally:
                cursor.execute(LOCK_WAIT_AS_BEFORE)

    def passes() -> bool:
        ends_while_held([locked], step)
        return case.is_done(good)

    with case.poison(bad):
        wait_until(passes, message=lambda: f"not done: {vars(reload(good))}")
        assert not case.is_done(locked)
    wait_until(lambda: loop.step() or case.is_done(locked))


def encrypted_columns() -> list[tuple[str, str]]:
    """Return the encrypted columns of rows that an organization owns, as (table, column)."""
    return [
        (model._meta.db_table, field.column)
        for model in apps.get_models()
        for field in model._meta.concrete_fields
        if isinstance(field, EncryptedTextField | EncryptedJSONField) and hasattr(model, "organization")
    ]


def test_no_loop_fails_if_an_organizations_secrets_cannot_be_read() -> None:
    theirs = tenant("Bravotown")
    columns = encrypted_columns()
    assert len(columns) >= 9
    with connection.cursor() as cursor:
        for table, column in columns:
            cursor.execute(
                f"UPDATE {table} SET {column} = 'unreadable' WHERE organization_id = %s", [theirs.organization.pk]
            )
            assert cursor.rowcount, f"{table} has no row"
    for loop in all_loops():
        if isinstance(loop, Loop):
            loop.step()


@contextmanager
def all_locked(organization: Organization) -> Iterator[None]:
    """Lock every row of the organization in another session."""
    session = connections.create_connection("default")
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            cursor.execute("SELECT 1 FROM accounts_organization WHERE id = %s FOR UPDATE", [organization.pk])
            for model in apps.get_models():
                if issubclass(model, OwnedModel):
                    table = model._meta.db_table
                    cursor.execute(
                        f"SELECT 1 FROM {table} WHERE organization_id = %s FOR UPDATE", [organization.pk]
                    )
        with patient_batches.production_limits():
            yield
    finally:
        session.rollback()
        session.close()


def test_no_loop_fails_if_all_rows_of_an_organization_are_locked(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = tenant("Bravotown")
    monkeypatch.setattr(lock_waits, "LOOP_S", 0.1)
    failed: dict[str, str] = {}
    with all_locked(theirs.organization):
        for loop in all_loops():
            if not isinstance(loop, Loop):
                continue
            with connection.cursor() as cursor:
                cursor.execute(LOCK_WAIT)
                try:
                    loop.step()
                except DatabaseError as error:
                    failed[loop.name] = str(error)
                finally:
                    cursor.execute(LOCK_WAIT_AS_BEFORE)
    assert failed == {}


def test_kinds_of_retention_fail_alone() -> None:
    """Retention has no rows that are due: it visits every organization for every kind."""
    seen: list[int] = []
    bad, good = make.organization(), make.organization()

    def delete(organization_id: int, *_: Any) -> int:
        if organization_id == bad.pk:
            raise ValueError("poison")
        seen.append(organization_id)
        return 0

    kind = next(iter(retention.kept.values()))
    broken = retention.RetentionKind("probe", "Probe", 10, 1, delete)
    with mock.patch.dict(retention.kept, {kind.name: kind, "probe": broken}):
        wait_until(lambda: find_loop("retention").step() or good.pk in seen)
