"""Check that broken histories are refused, each with a line that says what is wrong."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from dispatch.core import clock, events
from dispatch.core.events import history
from dispatch.core.events.history import Entry, IllegalStep, Machine
from dispatch.core.models import Event
from dispatch.jobs.history import JobHistory, OfferHistory
from dispatch.leads.history import LeadHistory
from dispatch.leads.models import Campaign, Lead
from dispatch.outbox.history import MessageHistory
from dispatch.schedules.history import RunHistory
from dispatch.telephony.history import CallHistory
from tests.support import factories

Steps = list[tuple[str, dict[str, Any]]]


def follow(machine: type[Machine], steps: Steps) -> list[str]:
    """What is wrong with the steps, each as "verb why"."""
    subject, wrong = machine(), []
    for number, (verb, data) in enumerate(steps, start=1):
        try:
            subject.follow(Entry(number, verb, data))
        except IllegalStep as why:
            wrong.append(f"{verb} {why}")
    return wrong


def steps(*verbs: str, **data: Any) -> Steps:
    return [(verb, data) for verb in verbs]


GOOD: list[tuple[type[Machine], Steps]] = [
    (CallHistory, steps("created", "requesting", "held_back", "requesting", "submitted", "ringing", "answered")),
    (CallHistory, steps("created", "requesting", "unknown", "key_pressed", "completed", "signature_refused")),
    (CallHistory, steps("submitted", "ringing", "no_answer", purpose="lead")),
    (JobHistory, steps("created", "offering", "pending", "dispatch_again", "assigned", "completed", "reopened")),
    (JobHistory, steps("created", "pending", "trial_began", "provider_back", "assigned", "cannot_make_it")),
    (JobHistory, steps("cancelled", "dispatch_again", "pending")),  # the events before were deleted
    (OfferHistory, steps("made", "ringing", "timed_out", "accepted", "rescinded", "accepted")),
    (LeadHistory, [("created", {}), ("processing", {"attempt": 1}), ("again", {"attempt": 1}), *steps("hurried"),
                   ("processing", {"attempt": 2}), ("finished", {"attempt": 2})]),
    (MessageHistory, [("created", {}), ("queued", {"epoch": 1}), ("processing", {"epoch": 1}),
                      ("failed", {"epoch": 1, "status": "ERROR"}), ("retried", {"status": "PENDING"}),
                      ("queued", {"epoch": 2}), ("cancelled", {"status": "CANCELLED"})]),
    (MessageHistory, [("created", {}), ("processing", {"epoch": 1}),
                      ("retrying", {"epoch": 1, "status": "PENDING"}),
                      ("processing", {"epoch": 2}), ("completed", {"epoch": 2, "status": "COMPLETED"})]),
    (RunHistory, [("in_progress", {"epoch": 1}), ("running", {"epoch": 1}), ("in_progress", {"epoch": 2}),
                  ("running", {"epoch": 2}), ("failed", {"epoch": 2}), *steps("retrying", "cancelled")]),
    (RunHistory, steps("in_progress", "running", "succeeded")),  # of a version without epochs
]  # fmt: skip
BAD: list[tuple[type[Machine], Steps, str]] = [
    (CallHistory, steps("created", "requesting", "completed", "ringing"), "ringing is illegal after completed"),
    (CallHistory, steps("created", "submitted", "submitted"), "submitted is illegal after submitted"),
    (CallHistory, steps("created", "submitted", "held_back"), "held_back is illegal after submitted"),
    (CallHistory, steps("created", "created"), "created is illegal after created"),
    (JobHistory, steps("created", "assigned", "resumed"), "resumed is illegal after assigned"),
    (JobHistory, steps("created", "assigned", "trial_began"), "trial_began is illegal after assigned"),
    (JobHistory, steps("created", "completed"), "completed is illegal after dispatching"),
    (JobHistory, [*steps("created"), ("round", {"round": 2}), ("round", {"round": 2})],
     "round has token 2 after token 2"),
    (OfferHistory, steps("made", "accepted", "timed_out"), "timed_out is illegal after accepted"),
    (OfferHistory, steps("made", "declined", "declined"), "declined is illegal after declined"),
    (LeadHistory, [*steps("created"), ("processing", {"attempt": 1}), ("processing", {"attempt": 2})],
     "processing is illegal after processing"),
    (LeadHistory, [*steps("created"), ("processing", {"attempt": 1}), ("again", {"attempt": 1}),
                   ("processing", {"attempt": 1})], "processing has token 1 after token 1"),
    (LeadHistory, [*steps("created"), ("processing", {"attempt": 2}), ("finished", {"attempt": 1})],
     "finished has token 1, but the current one is 2"),
    (MessageHistory, [*steps("created"), ("queued", {"epoch": 1}), ("queued", {"epoch": 2})],
     "queued is illegal after QUEUED"),
    (MessageHistory, [*steps("created"), ("queued", {"epoch": 2}), ("processing", {"epoch": 1})],
     "processing has token 1, but the current one is 2"),
    (MessageHistory, [*steps("created"), ("queued", {"epoch": 1}), ("processing", {"epoch": 1}),
                      ("completed", {"epoch": 1, "status": "ERROR"})], "completed must not lead to ERROR"),
    (MessageHistory, [*steps("created"), ("processing", {"epoch": 1}), ("processing", {"epoch": 2})],
     "processing is illegal after PROCESSING"),
    (MessageHistory, [*steps("created"), ("processing", {"epoch": 1}),
                      ("retrying", {"epoch": 1, "status": "PENDING"}), ("processing", {"epoch": 1})],
     "processing has token 1 after token 1"),
    (RunHistory, [("in_progress", {"epoch": 1}), ("running", {"epoch": 1}), ("running", {"epoch": 1})],
     "running is illegal after running"),
    (RunHistory, [("in_progress", {"epoch": 1}), ("running", {"epoch": 1}), ("in_progress", {"epoch": 1})],
     "in_progress has token 1 after token 1"),
    (RunHistory, [("in_progress", {"epoch": 1}), ("running", {}), ("in_progress", {"epoch": 2}),
                  ("running", {"epoch": 1})], "running has token 1 after token 2"),
    (RunHistory, steps("in_progress", "running", "missed"), "missed is illegal after running"),
]  # fmt: skip


@pytest.mark.parametrize(("machine", "taken"), GOOD)
def test_legal_histories_are_accepted(machine: type[Machine], taken: Steps) -> None:
    assert follow(machine, taken) == []


@pytest.mark.parametrize(("machine", "taken", "wrong"), BAD)
def test_illegal_steps_are_refused(machine: type[Machine], taken: Steps, wrong: str) -> None:
    assert wrong in follow(machine, taken)


def make_lead() -> Lead:
    """A lead without any event."""
    organization = factories.organization()
    pool = factories.pool(organization)
    campaign = Campaign.objects.create(organization=organization, pool=pool, code="c", name="c")
    return Lead.objects.create(organization=organization, campaign=campaign, phone=factories.phone())


@pytest.mark.django_db
class TestLog:
    """Histories as they are in the database."""

    def append(self, kind: str, subject_id: int, **data: Any) -> int:
        if not hasattr(self, "organization"):
            self.organization = factories.organization()
        return int(events.append(self.organization.pk, kind, subject_id, **data).pk)

    def test_two_accepted_offers_of_one_job_are_reported(self) -> None:
        first = self.append("offer.accepted", 1, job_id=7, technician_id=1)
        self.append("offer.accepted", 3, job_id=8, technician_id=3)
        assert list(history.violations()) == []
        second = self.append("offer.accepted", 2, job_id=7, technician_id=2)
        assert list(history.violations()) == [
            f"job 7: offer 2 takes it in event {second}, but offer 1 has it since event {first}"
        ]

    def test_an_accepted_offer_that_was_withdrawn_makes_room_for_another(self) -> None:
        for kind, offer in (("accepted", 1), ("rescinded", 1), ("accepted", 2)):
            self.append(f"offer.{kind}", offer, job_id=7, technician_id=offer)
        assert list(history.violations()) == []

    def test_a_row_that_its_events_do_not_explain_is_reported(self) -> None:
        lead = make_lead()
        self.append("lead.again", lead.pk)
        Lead.objects.update(status="finished", outcome="failed", finished_at=clock.now())
        assert list(history.violations()) == [
            f"lead {lead.pk}: its row is finished, but its events end with backlog",
            f"lead {lead.pk}: its history has no beginning",
        ]

    @pytest.mark.parametrize(
        ("kinds", "data"),
        [
            (("message.created", "message.completed"), {"epoch": 1, "status": "COMPLETED"}),
            (("run.in_progress", "run.retrying", "run.cancelled"), {"epoch": 1}),
        ],
    )
    def test_steps_deleted_with_their_row_are_not_missed(self, kinds: tuple[str, ...], data: Any) -> None:
        for kind in kinds:
            self.append(kind, 2**40, **data)
        result = history.Result()
        assert list(history.violations(result)) == []
        assert (result.subjects, result.violations) == (1, 0)

    def test_events_that_retention_deleted_are_not_missed(self, settings: Any) -> None:
        lead = make_lead()
        self.append("lead.again", lead.pk)
        assert any("no beginning" in line for line in history.violations())
        clock.travel(86_400.0 * (settings.EVENT_LOG_MIN_DAYS + 1))
        assert list(history.violations()) == []

    def test_only_the_last_days_are_checked_on_request(self) -> None:
        self.append("offer.accepted", 1, job_id=7)
        self.append("offer.accepted", 2, job_id=7)
        clock.travel(3 * 86_400.0)
        self.append("offer.made", 3, job_id=9, technician_id=3)
        result = history.Result()
        assert list(history.violations(result, days=2)) == []
        assert result.events == 1
        assert len(list(history.violations(days=4))) == 1

    def test_long_logs_are_read_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(history, "FETCH", 3)
        monkeypatch.setattr(history, "SUBJECTS", 2)
        for offer in range(1, 8):
            self.append("offer.made", offer, job_id=offer, technician_id=offer)
            self.append("offer.declined", offer, job_id=offer, technician_id=offer)
        result = history.Result()
        assert list(history.violations(result)) == []
        assert (result.events, result.subjects) == (14, 7)


@pytest.mark.django_db(transaction=True)
def test_the_command_prints_one_line_per_violation_and_fails() -> None:
    organization = factories.organization()
    events.append(organization.pk, "offer.made", 1, job_id=7, technician_id=1)
    said = StringIO()
    call_command("check_history", stdout=said)
    assert said.getvalue() == "Checked 1 event of 1 subject: no violations.\n"
    events.append(organization.pk, "offer.made", 1, job_id=7, technician_id=1)
    said = StringIO()
    with pytest.raises(CommandError, match=r"Checked 2 events of 1 subject: 1 violation\."):
        call_command("check_history", stdout=said)
    last = Event.objects.latest("id").pk
    assert said.getvalue() == f"offer 1: offer.made (event {last}) is illegal after pending\n"


@pytest.mark.django_db(transaction=True)
def test_the_check_cannot_write() -> None:
    organization = factories.organization()
    lines = history.violations()

    def write(scope: history.Scope) -> Any:
        organization.save()
        yield "unreachable"

    history.register_check("writes", write)
    try:
        with pytest.raises(Exception, match="read-only transaction"):
            list(lines)
    finally:
        history._checks.pop("writes")
    assert not connection.in_atomic_block
