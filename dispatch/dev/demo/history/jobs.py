"""Write jobs of the past with their forms, candidates, offers, calls, alerts and events."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from zoneinfo import ZoneInfo

from accounts.models import ApiKey, Membership, User
from dispatch.capacity.models import DispatchPool
from dispatch.core.events import Actor
from dispatch.dev.demo.history.calls import CallWriter, PastCall
from dispatch.dev.demo.history.crew import REASONS, Attempt, Cascade, Crew, Worker
from dispatch.dev.demo.history.customers import draw_customers
from dispatch.dev.demo.history.requests import Request, draw_requests
from dispatch.dev.demo.history.rows import Batch
from dispatch.jobs import policies
from dispatch.jobs.models import Candidate, Job, Offer, ServiceType, Submission
from dispatch.jobs.rules.duplicates import address_key
from dispatch.technicians.rules import distance_words
from notifications import rules
from notifications.models import Alert, Notification
from notifications.services.preferences import plan_of

# Share of jobs that the customer cancels, and that nobody accepts at first.
CANCELLED, EXHAUSTED = 0.035, 0.045
WHY_CANCELLED = ("by the customer", "by the customer: fixed itself", "wrong address", "sent twice")
CRITICAL = Notification.Level.CRITICAL


@dataclass(frozen=True)
class PastJob:
    """A job that was written. `technician` is None if nobody was assigned."""

    id: int
    request: Request
    technician: str | None
    assigned_at: datetime | None
    ended_at: datetime | None
    status: str


class JobWriter:
    """Write jobs with their parts into a batch."""

    def __init__(self, batch: Batch, chance: random.Random) -> None:
        self.batch, self.chance = batch, chance
        self.organization = batch.organization
        self.zone = ZoneInfo(self.organization.time_zone)
        self.crew = Crew(self.organization)
        self.customers = draw_customers(random.Random("customers"))
        self.calls = CallWriter(batch, chance, DispatchPool.objects.of(self.organization).get(code="main"))
        key = ApiKey.objects.of(self.organization).order_by("pk").first()
        self._key_id = key.pk if key else None
        self._form = Actor("api_key", self._key_id, key.name) if key else Actor("customer", None, "Customer")
        self._policies: dict[str, dict[str, Any]] = {}

    @cached_property
    def dispatchers(self) -> list[User]:
        members = Membership.objects.of(self.organization).filter(role=Membership.Role.DISPATCHER, is_active=True)
        return [member.user for member in members.select_related("user").order_by("pk")]

    @cached_property
    def escalation_plan(self) -> dict[str, Any]:
        return dict(plan_of(self.organization.pk).to_json())

    def write_job(self, request: Request, cascade: Cascade, *, status: str, **values: Any) -> dict[str, Any]:
        """Collect a job with its form, candidates and offers, and return the job's row."""
        service, customer = self.crew.services[request.service], request.customer
        common = {
            "customer_name": customer.name, "customer_phone": customer.phone, "service_type_id": service.pk,
            "priority": request.priority, "address": customer.address, "notes": request.notes, "lat": customer.lat,
            "lng": customer.lng,
        }  # fmt: skip
        form = {**common, "service_type": service.code}
        del form["service_type_id"]
        submission = self.batch.add(
            Submission, **common, status="processed", form=form, api_key_id=self._key_id, starts=1,
            created_at=request.at,
        )  # fmt: skip
        created = request.at + timedelta(seconds=0.3)
        job = self.batch.add(
            Job, **{
                **common, "submission_id": submission["id"], "status": status, "position_source": "form",
                "policy": self._policy(service.code), "address_key": address_key(customer.address),
                "created_at": created, "version": 4, **values,
            },
        )  # fmt: skip
        self.batch.event(request.at, "submission.received", submission["id"], self._form, service=service.name)
        self.batch.event(created, "job.created", job["id"], submission_id=submission["id"], position_source="form")
        self._write_candidates(job, cascade)
        if cascade.fit:
            self.batch.event(
                created, "job.offering", job["id"], fit=cascade.fit, considered=len(cascade.considered)
            )
        for number, attempt in enumerate(cascade.attempts, 1):
            self._write_offer(job, attempt, number)
        return job

    def assign(self, job: dict[str, Any], worker: Worker, at: datetime, by: User | None = None) -> None:
        """Assign the job: as accepted by phone, or by a dispatcher."""
        job.update(status="assigned", pending_reason="", technician_id=worker.row.pk, assigned_at=at)
        actor = worker.actor if by is None else person(by)
        way: dict[str, Any] = {"by": "phone"} if by is None else {}
        self.batch.event(
            at, "job.assigned", job["id"], actor, technician_id=worker.row.pk, technician=worker.row.name, **way
        )

    def start(self, job: dict[str, Any], worker: Worker, at: datetime) -> None:
        job["started_at"] = at
        self.batch.event(at, "job.started", job["id"], worker.actor, technician_id=worker.row.pk)

    def complete(self, job: dict[str, Any], worker: Worker, at: datetime) -> None:
        job.update(status="completed", ended_at=at)
        self.batch.event(at, "job.completed", job["id"], worker.actor, technician_id=worker.row.pk)

    def cancel(self, job: dict[str, Any], at: datetime) -> None:
        job.update(status="cancelled", pending_reason="", ended_at=at, next_action_at=None)
        who = person(self.chance.choice(self.dispatchers))
        self.batch.event(at, "job.cancelled", job["id"], who, reason=self.chance.choice(WHY_CANCELLED))

    def hand_over(self, job: dict[str, Any], at: datetime, reason: str, **values: Any) -> dict[str, Any]:
        """Make the job pending, and collect its alert for every dispatcher. Return the alert's row."""
        label = str(Job.PendingReason(reason).label)
        job.update(status="pending", pending_reason=reason, waiting_for="person", waiting_since=at)
        service = self.service_of(job)
        facts = {"service": service.name, "customer": job["customer_name"], "place": job["address"]}
        said = rules.message_of(rules.BY_KIND["job.pending"], {**facts, "id": job["id"], "reason_text": label})
        about = {
            "kind": "job.pending", "title": said.title, "body": said.body, "subject_type": "job",
            "subject_id": job["id"], "created_at": at,
        }  # fmt: skip
        alert = self.batch.add(
            Alert, **{
                **about, "plan": self.escalation_plan, "status": "open", "next_action_at": at,
                "next_repeat_at": at, **values,
            },
        )  # fmt: skip
        rows = [
            self.batch.add(Notification, **about, user_id=user.pk, alert_id=alert["id"], level=CRITICAL)
            for user in self.dispatchers
        ]
        alert["_rows"] = rows
        self.batch.event(at, "job.pending", job["id"], rows=[alert, *rows], reason=reason, reason_text=label)
        self.batch.event(at + timedelta(seconds=0.2), "job.alert_raised", job["id"], alert_id=alert["id"])
        return alert

    def acknowledge(self, alert: dict[str, Any], at: datetime, user: User) -> None:
        alert.update(status="acknowledged", acknowledged_at=at, acknowledged_by_id=user.pk, acknowledged_via="app")
        alert.update(next_action_at=None, next_repeat_at=None)
        for row in alert["_rows"]:
            row.update(acknowledged_at=at, acknowledged_by_id=user.pk, read_at=at)
        self.batch.event(at, "job.alert_acknowledged", alert["subject_id"], person(user), alert_id=alert["id"])

    def settle(self, alert: dict[str, Any], at: datetime, how: str) -> None:
        alert.update(status="settled", settled_at=at, settled_how=how, next_action_at=None, next_repeat_at=None)
        for row in alert["_rows"]:
            row.update(settled_at=at, settled_how=how, read_at=row.get("read_at") or at)
        self.batch.event(at, "job.alert_settled", alert["subject_id"], alert_id=alert["id"], how=how)

    def service_of(self, job: dict[str, Any]) -> ServiceType:
        """Return the service of a job that was collected."""
        return next(service for service in self.crew.services.values() if service.pk == job["service_type_id"])

    # --- parts ---------------------------------------------------------------------------------------------------

    def _policy(self, code: str) -> dict[str, Any]:
        if code not in self._policies:
            service = self.crew.services[code]
            self._policies[code] = policies.for_service_type(self.organization.pk, service.pk).to_json()
        return self._policies[code]

    def _write_candidates(self, job: dict[str, Any], cascade: Cascade) -> None:
        for rank, (worker, meters, is_fit) in enumerate(cascade.considered, 1):
            distance = distance_words(meters, self.organization.distance_unit)
            self.batch.add(
                Candidate, job_id=job["id"], technician_id=worker.row.pk, rank=rank, distance_m=meters,
                verdict="in" if is_fit else "out", score=round(meters / 1000 + rank, 3),
                reason=f"{distance}, qualified" if is_fit else f"{distance}, off shift",
            )  # fmt: skip

    def _write_offer(self, job: dict[str, Any], attempt: Attempt, number: int) -> None:
        worker = attempt.worker
        status = {"accepted": "accepted", "declined": "declined"}.get(attempt.outcome, "failed")
        offer = self.batch.add(
            Offer, job_id=job["id"], technician_id=worker.row.pk, attempt=number, status=status,
            outcome=attempt.outcome, reason=REASONS[attempt.outcome], distance_m=attempt.distance_m,
            created_at=attempt.offered_at, ringing_since=attempt.ringing_at, answered_at=attempt.answered_at,
            expires_at=attempt.ringing_at + timedelta(seconds=45), settled_at=attempt.settled_at,
        )  # fmt: skip
        about = {
            "job_id": job["id"], "technician_id": worker.row.pk, "technician": worker.row.name, "attempt": number,
        }  # fmt: skip
        event = self.batch.event
        event(attempt.offered_at, "offer.made", offer["id"], **about, round=1, distance_m=attempt.distance_m)
        ended = attempt.settled_at + timedelta(seconds=self.chance.uniform(3, 9) if attempt.is_accepted else 0.5)
        call = PastCall(
            worker.row.phone.as_e164, attempt.outcome, attempt.offered_at, attempt.ringing_at, attempt.answered_at,
            ended, attempt.key, attempt.settled_at,
        )  # fmt: skip
        self.calls.write("offer", offer["id"], call, context={"job_id": job["id"]})
        event(attempt.ringing_at, "offer.ringing", offer["id"], **about)
        if attempt.answered_at:
            event(attempt.answered_at, "offer.answered", offer["id"], **about)
        actor = worker.actor if attempt.key else Actor()
        end: dict[str, Any] = {"outcome": attempt.outcome, "reason": REASONS[attempt.outcome]}
        event(attempt.settled_at, f"offer.{status}", offer["id"], actor, **about, **end)


def person(user: User) -> Actor:
    """Return the user as the actor of an event."""
    return Actor("user", user.pk, user.name)


def write_past_jobs(batch: Batch, chance: random.Random, now: datetime, days: int) -> list[PastJob]:
    """Collect the jobs of the last `days` days, all of which have ended, and return them."""
    writer = JobWriter(batch, chance)
    today = now.astimezone(writer.zone).date()
    past = []
    for request in draw_requests(chance, writer.customers, today - timedelta(days=days), today, writer.zone):
        if request.at < now - timedelta(hours=5):
            past.append(_past_job(writer, request))
    return past


def _past_job(writer: JobWriter, request: Request) -> PastJob:
    chance = writer.chance
    cascade = writer.crew.dispatch(chance, request, exhausts=chance.random() < EXHAUSTED)
    job = writer.write_job(request, cascade, status="dispatching")
    worker: Worker | None = None
    if cascade.accepted:
        worker, at = cascade.accepted.worker, cascade.accepted.settled_at
        writer.assign(job, worker, at)
    else:
        worker, at = _decide(writer, job, cascade)
    if worker is None:
        return PastJob(job["id"], request, None, None, job["ended_at"], job["status"])
    if chance.random() < CANCELLED:
        writer.cancel(job, at + timedelta(minutes=chance.uniform(4, 35)))
    else:
        started = at + timedelta(minutes=chance.uniform(18, 70))
        writer.start(job, worker, started)
        writer.complete(job, worker, started + timedelta(minutes=chance.uniform(25, 140)))
    return PastJob(job["id"], request, worker.row.name, job["assigned_at"], job["ended_at"], job["status"])


def _decide(writer: JobWriter, job: dict[str, Any], cascade: Cascade) -> tuple[Worker | None, datetime]:
    """Have a dispatcher decide about a job that nobody accepted: assign or cancel it."""
    chance = writer.chance
    at = cascade.attempts[-1].settled_at if cascade.attempts else job["created_at"]
    reason = Job.PendingReason.EXHAUSTED if cascade.attempts else Job.PendingReason.NOBODY_NEAR
    alert = writer.hand_over(job, at, str(reason))
    user = chance.choice(writer.dispatchers)
    taken = at + timedelta(minutes=chance.uniform(0.4, 6))
    writer.acknowledge(alert, taken, user)
    decided = taken + timedelta(minutes=chance.uniform(1, 9))
    workers: Sequence[Worker] = [worker for worker, _, _ in cascade.considered]
    if workers and chance.random() < 0.85:
        worker = chance.choice(workers)
        writer.assign(job, worker, decided, by=user)
        writer.settle(alert, decided, f"{user.name} assigned the job to {worker.row.name}")
        return worker, decided
    writer.cancel(job, decided)
    writer.settle(alert, decided, f"{user.name} canceled the job")
    return None, decided
