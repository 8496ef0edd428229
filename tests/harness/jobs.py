"""A dispatch floor for tests: an organization with lines, technicians with phones, workers that really work.

    def test_the_second_technician_takes_the_job(floor):
        ann, bob = floor.technician("Ann"), floor.technician("Bob", km=2)
        floor.phone(ann).will(decline_key())
        job = floor.submit()
        floor.until(lambda: floor.status(job) == "assigned")

Nothing runs by itself but the application (real HTTP) and the simulator (20 times faster than life): `work()` runs
the RQ workers in this process until their queues are empty, `until(condition)` does so again and again, `later(s)`
moves our clock and puts on the queues what is due by it, `audit()` and `tick()` run the dispatcher's loops once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.db import close_old_connections
from rq.registry import ScheduledJobRegistry
from rq.timeouts import TimerDeathPenalty

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.redis.client import client
from dispatch.core.runtime.queues import rq_queue
from dispatch.core.runtime.rq_worker import DispatchWorker
from dispatch.jobs import services, timeline
from dispatch.jobs.models import DispatchPolicy, Job, Offer, ServiceType, Submission
from dispatch.technicians.models import Technician
from dispatch.telephony.loops import RECONCILERS, place_due, send_due
from dispatch.telephony.models import Call, Text
from dispatch.telephony.services import hang_ups
from tests.phones import Phone, PhoneCall, Simulator
from tests.support import factories
from tests.support.waiting import PATIENCE

DANA = "+16025550123"
KM = 1 / 111.2  # degrees of latitude
MARIA = Actor("user", 7, "Maria Lopez")
JOHN = Actor("user", 8, "John Sedlak")


def submitted(organization: Organization, service: ServiceType, **fields: Any) -> Submission:
    """A form from Dana in Phoenix, with these fields."""
    form = {
        "customer_name": "Dana Whitfield",
        "customer_phone": DANA,
        "service_type": service,
        "address": factories.PHOENIX.address,
        "lat": factories.PHOENIX.lat,
        "lng": factories.PHOENIX.lng,
        **fields,
    }
    return services.accept_submission(organization, form, raw={"as": "it came"}, actor=MARIA)


def started_job(organization: Organization, service: ServiceType, **fields: Any) -> Job:
    """The job of such a form, made here and now; no call is placed."""
    job = services.start_job(submitted(organization, service, **fields).pk, place=False)
    assert job is not None
    return Job.objects.get(pk=job.pk)


class Worker(DispatchWorker):
    """Works in a test: without signals, which belong to pytest."""

    death_penalty_class = TimerDeathPenalty

    def _install_signal_handlers(self) -> None:
        """None."""


class Floor:
    def __init__(self, sim: Simulator, **policy: Any) -> None:
        self.sim = sim
        self._due_by = 0  # delayed jobs due by this time are enqueued: Unix seconds
        self.organization = factories.organization("Copper State Plumbing")
        account = factories.account(
            self.organization, account_sid=sim.account_sid, auth_token=sim.auth_token, calls_per_second=1000.0
        )
        self.number = factories.number(self.organization, account=account, max_channels=10)
        self.service = factories.service_type(self.organization, "water-heater", name="Water heater repair")
        self.policy = DispatchPolicy.objects.create(organization=self.organization, **policy)

    # --- who is there ---------------------------------------------------------------------------------------
    def technician(self, name: str, km: float = 1.0, **fields: Any) -> Technician:
        """On duty, `km` kilometers north of the customer."""
        at = factories.PHOENIX._replace(lat=factories.PHOENIX.lat + km * KM)
        return factories.technician(self.organization, name, at=at, **fields)

    def phone(self, technician: Technician) -> Phone:
        return self.sim.phone(str(technician.phone))

    def crew(self, *names: str) -> list[Technician]:
        """Technicians, each a kilometer farther away than the one before."""
        return [self.technician(name, km=place) for place, name in enumerate(names, start=1)]

    def set_policy(self, **fields: Any) -> None:
        DispatchPolicy.objects.filter(pk=self.policy.pk).update(**fields)

    # --- what comes in --------------------------------------------------------------------------------------
    def submit(self, **fields: Any) -> Submission:
        return submitted(self.organization, self.service, **fields)

    def job(self, of: Submission | Job) -> Job:
        """The job as it is now."""
        if isinstance(of, Job):
            return Job.objects.get(pk=of.pk)
        return Job.objects.get(submission=of)

    def started(self, **fields: Any) -> Job:
        """A job whose first technician is being called."""
        submission = self.submit(**fields)
        self.work()
        return self.job(submission)

    # --- what happens ---------------------------------------------------------------------------------------
    def work(self, *queues: str) -> None:
        """Runs what is on the RQ queues, and what that puts on them, until nothing is left."""
        names = queues or (settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE)
        while any(rq_queue(name).count for name in names):
            for name in names:
                worker = Worker([rq_queue(name)], connection=client())
                worker.work(burst=True, with_scheduler=False, logging_level=None)
        close_old_connections()

    def until(self, condition: Callable[[], Any], within: float = PATIENCE) -> Any:
        """Works until the condition holds, and repeats hang-ups, as the dispatcher does."""
        deadline = time.monotonic() + within
        while True:
            self._enqueue_due()
            self.work()
            hang_ups.hang_up_due()
            if value := condition():
                return value
            if time.monotonic() >= deadline:
                raise AssertionError(f"not within {within:g} s\n{self.story()}")
            time.sleep(0.02)

    def later(self, seconds: float) -> None:
        """Moves our clock, and puts the delayed jobs that are due by it on their queues.

        `until` repeats the second part: a web thread may commit a state before it enqueues the delayed job.
        """
        clock.travel(seconds)
        self._due_by = int(clock.now().timestamp())
        self._enqueue_due()

    def _enqueue_due(self) -> None:
        for name in (settings.DISPATCH_QUEUE, settings.DISPATCH_TIMEOUT_QUEUE):
            queue = rq_queue(name)
            registry = ScheduledJobRegistry(queue=queue)
            for job_id in registry.get_jobs_to_schedule(self._due_by):
                registry.remove(job_id)
                if (job := queue.fetch_job(job_id)) is not None:  # not deleted by a web thread meanwhile
                    queue.enqueue_job(job)

    def delayed(self) -> list[tuple[str, list[Any]]]:
        """The delayed jobs on the timeout queue: function and arguments, the soonest first."""
        queue = rq_queue(settings.DISPATCH_TIMEOUT_QUEUE)
        found = []
        for job_id in ScheduledJobRegistry(queue=queue).get_job_ids():
            job = queue.fetch_job(job_id)
            found.append((job.func_name, list(job.args)))
        return found

    def audit(self) -> int:
        """One pass of the auditor, and of telephony's placer and reconciler."""
        done = services.audit()
        self.tick()
        return done

    def tick(self) -> None:
        """Run one pass of the loops that are woken or run each second.

        A second later the placer takes the remaining calls.
        """
        services.move_on_waiting()
        clock.travel(1.1)
        place_due()
        for reconciler in RECONCILERS:
            reconciler.step()

    def pause(self, job: Job) -> None:
        """Pause the job, and wait until the call that this ends is over, so that its technician can be called."""
        services.pause(job.pk, actor=MARIA)
        self.until(lambda: not Call.objects.filter(ended_at=None).exists())

    def send_texts(self) -> None:
        """Run the loop of texts until those that may be sent now have left. Texts of one number are paced."""

        def is_done() -> bool:
            send_due()
            soon = clock.now() + timedelta(seconds=1)
            return not Text.objects.filter(status="created", not_before__lte=soon).exists()

        self.until(is_done)

    # --- what one sees --------------------------------------------------------------------------------------
    def status(self, of: Submission | Job) -> str:
        job = Job.objects.filter(submission=of) if isinstance(of, Submission) else Job.objects.filter(pk=of.pk)
        return str(job.values_list("status", flat=True).first())

    def rings(self, technician: Technician) -> PhoneCall:
        """Works until the technician's phone rings with a call not seen yet."""
        phone = self.phone(technician)
        known = {call.sid for call in self.sim.calls_to(str(technician.phone)) if call.sid in phone._seen}
        self.until(
            lambda: any(
                "ringing" in call.statuses and call.sid not in known
                for call in self.sim.calls_to(str(technician.phone))
            )
        )
        return phone.rings()

    def offers(self, job: Job) -> list[tuple[str, str]]:
        """(technician, outcome or status) of each offer, in order."""
        rows = Offer.objects.filter(job=job).select_related("technician").order_by("attempt")
        return [(row.technician.name, row.outcome or row.status) for row in rows]

    def live_offer(self, job: Job) -> Offer:
        return Offer.objects.get(job=job, status="pending")

    def kinds(self, job: Job) -> list[str]:
        """The kinds of the job's events, without those of calls."""
        return [entry.kind for entry in timeline.load_timeline(self.job(job)) if entry.subject_type != "call"]

    def calls_made(self, technician: Technician) -> int:
        """How many calls to this technician the provider really made."""
        return self.sim.creates_to(str(technician.phone))

    def story(self) -> str:
        events = Event.objects.order_by("id")
        lines = [f"{e.at:%H:%M:%S} {e.kind} {e.subject_id} by {e.actor_label} {e.data}" for e in events]
        jobs = [
            f"job {j.pk}: {j.status} {j.pending_reason} waits for {j.waiting_for!r} until {j.next_action_at}"
            for j in Job.objects.order_by("pk")
        ]
        return "\n".join([*lines, *jobs, f"now {clock.now()}", self.sim.story()])
