"""Write the day in progress: open jobs in every state, and an unacknowledged alert."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from dispatch.capacity.models import OutboundNumber
from dispatch.dev.demo.history.crew import Cascade, Worker
from dispatch.dev.demo.history.jobs import JobWriter, person
from dispatch.dev.demo.history.notes import write_notes
from dispatch.dev.demo.history.requests import Request, draw_request
from dispatch.dev.demo.history.rows import Batch
from dispatch.jobs.models import JobText
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Text
from notifications.models import Claim

# Open alerts of the history are not escalated for this long, so that demo data texts and calls nobody.
NO_ESCALATION = timedelta(days=30)
# Minutes since the assignment, and since the start of the work (None: not started).
ASSIGNED = (
    (4, None), (11, None), (19, None), (37, None), (52, 12), (75, 31), (95, 48), (130, 66), (150, 95),
)  # fmt: skip
LATE_BY = timedelta(minutes=25)  # how long ago the work of the late job should have started
TEXT = "Running 20 min late, accident on I-10. Please tell the customer."


def write_open_jobs(batch: Batch, chance: random.Random, now: datetime) -> None:
    """Collect the open jobs. None of them is due, so nothing happens to them until a person acts."""
    writer = JobWriter(batch, chance)
    today = _Today(writer, now)
    jobs = [today.assigned(minutes, started) for minutes, started in ASSIGNED]
    today.not_started()
    today.text_from_technician(*jobs[2])
    exhausted = today.nobody_accepted()
    today.nobody_near()
    lost = today.address_not_found()
    paused = today.paused()
    write_notes(writer, now, delayed=jobs[2][0], exhausted=exhausted, lost=lost, paused=paused)
    for worker in today.taken.values():
        Technician.objects.filter(pk=worker.row.pk).update(open_jobs=1)


class _Today:
    """Write open jobs. Each technician gets one at most; `taken`: by id."""

    def __init__(self, writer: JobWriter, now: datetime) -> None:
        self._writer, self._now, self._chance = writer, now, writer.chance
        self.taken: dict[int, Worker] = {}

    def assigned(self, minutes: float, started: float | None) -> tuple[dict[str, Any], Worker]:
        """Write a job assigned this long ago, and started if `started` says when."""
        while True:
            request = self._request(minutes + 2)
            cascade = self._writer.crew.dispatch(self._chance, request)
            if (accepted := cascade.accepted) is None or accepted.worker.row.pk in self.taken:
                continue
            if accepted.settled_at < self._now - timedelta(minutes=minutes):
                break
        worker = accepted.worker
        self.taken[worker.row.pk] = worker
        job = self._writer.write_job(request, cascade, status="assigned")
        self._writer.assign(job, worker, accepted.settled_at)
        if started is not None:
            self._writer.start(job, worker, self._now - timedelta(minutes=started))
        return job, worker

    def not_started(self) -> None:
        """Write an assigned job whose work should have started."""
        job, worker = self.assigned(110, None)
        late = self._now - LATE_BY
        job.update(attention_at=late, reminded_at=late)
        self._writer.batch.event(
            late, "job.not_started", job["id"], technician_id=worker.row.pk, technician=worker.row.name
        )

    def nobody_accepted(self) -> dict[str, Any]:
        """Write a job that nobody accepted, with an open alert. Return its row."""
        request = self._request(11, "water-heater", priority=2)
        job, cascade = self._unanswered(request, 6)
        at = cascade.attempts[-1].settled_at
        self._writer.hand_over(
            job, at, "exhausted", next_action_at=self._now + NO_ESCALATION,
            next_repeat_at=self._now + NO_ESCALATION,
        )  # fmt: skip
        return job

    def nobody_near(self) -> None:
        """Write a job for which nobody has the skill, and which a dispatcher has claimed."""
        request = self._request(34, "inspection")
        request = Request(request.at, "steam-boiler", request.customer, 3, "Annual certificate for the landlord.")
        job = self._writer.write_job(request, Cascade([]), status="pending", pending_reason="nobody_near")
        alert = self._writer.hand_over(job, request.at + timedelta(seconds=0.5), "nobody_near")
        user = self._writer.dispatchers[-1]
        taken = request.at + timedelta(minutes=2)
        self._writer.acknowledge(alert, taken, user)
        self._writer.batch.add(Claim, subject_type="job", subject_id=job["id"], user_id=user.pk, claimed_at=taken)
        self._writer.batch.event(taken, "job.claimed", job["id"], person(user))

    def address_not_found(self) -> dict[str, Any]:
        """Write a job without a position. Its alert was acknowledged. Return its row."""
        request = self._request(21, "plumbing")
        job = self._writer.write_job(request, Cascade([]), status="pending", pending_reason="no_position")
        job.update(address="The blue house behind the feed store, Maricopa", lat=None, lng=None)
        job.update(position_source="", address_key="")
        alert = self._writer.hand_over(job, request.at + timedelta(seconds=0.5), "no_position")
        self._writer.acknowledge(alert, request.at + timedelta(minutes=1), self._writer.dispatchers[0])
        return job

    def paused(self) -> dict[str, Any]:
        """Write a job that a dispatcher paused after one technician declined. Return its row."""
        request = self._request(26, "electrical")
        job, _ = self._unanswered(request, 1)
        at, user = self._now - timedelta(minutes=22), self._writer.dispatchers[0]
        job.update(status="dispatching", paused_at=at, waiting_for="person", waiting_since=at)
        note = "Customer will call back at noon."
        self._writer.batch.event(at, "job.paused", job["id"], person(user), note=note)
        return job

    def text_from_technician(self, job: dict[str, Any], worker: Worker) -> None:
        """Write an unanswered text from the job's technician."""
        at = self._now - timedelta(minutes=6)
        organization = self._writer.organization
        number = OutboundNumber.objects.of(organization).filter(pool__code="main").order_by("pk")[0]
        text = self._writer.batch.add(
            Text, direction="in", purpose="thread", subject_id=job["id"], account_id=number.account_id,
            number_id=number.pk, to_phone=number.phone.as_e164, from_phone=worker.row.phone.as_e164, body=TEXT,
            status="received", not_before=at, not_after=at, created_at=at, ended_at=at, handled_at=at,
            price=Decimal("0.0079"), price_unit="USD",
        )  # fmt: skip
        text["sid"] = f"SM{text['id']:032x}"
        self._writer.batch.add(
            JobText, job_id=job["id"], text_id=text["id"], technician_id=worker.row.pk, created_at=at
        )
        self._writer.batch.event(
            at, "job.text_received", job["id"], worker.actor, technician_id=worker.row.pk,
            technician=worker.row.name, text_id=text["id"], body=TEXT, is_main=True,
        )  # fmt: skip

    def _unanswered(self, request: Request, most: int) -> tuple[dict[str, Any], Cascade]:
        cascade = self._writer.crew.dispatch(self._chance, request, exhausts=True)
        del cascade.attempts[most:]
        return self._writer.write_job(request, cascade, status="dispatching"), cascade

    def _request(self, minutes: float, service: str = "", priority: int = 0) -> Request:
        at = self._now - timedelta(minutes=minutes)
        drawn = draw_request(self._chance, self._writer.customers, at, service)
        if not priority:
            return drawn
        return Request(at, drawn.service, drawn.customer, priority, drawn.notes)
