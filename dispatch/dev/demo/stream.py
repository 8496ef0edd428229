"""Keep the demo organization busy: new forms, and technicians who work, move, and sometimes answer late.

`manage.py up` runs it as a process of its stack, and `manage.py up --quiet` doesn't.
"""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

import requests
import structlog
from django.db import DatabaseError, close_old_connections

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.dev.demo import data
from dispatch.dev.demo.client import Client
from dispatch.dev.demo.controls import Controls
from dispatch.dev.demo.history.customers import draw_customers
from dispatch.dev.demo.history.requests import draw_request
from dispatch.dev.demo.late_answers import send_answer
from dispatch.dev.demo.lines import Line
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import actions, follow_up
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician

log = structlog.get_logger(__name__)

# Seconds between two forms, and the first ones, so that the board shows calls at once.
FORM_EVERY_S, FIRST_FORMS_S = (20.0, 60.0), (1.0, 4.0, 9.0)
# Share of forms for a service that nobody offers, and for one whose only technician answers late.
STEAM_SHARE, WELL_SHARE = 0.02, 0.05
WELL_ADDRESSES = ("6245 E Cave Creek Rd, Cave Creek, AZ 85331", "155 N Tegner St, Wickenburg, AZ 85390")
MOVE_EVERY_S, WORK_EVERY_S, LATE_AFTER_S = 4.0, 15.0, 8.0
STEP_S = 0.5
# A technician with a job moves this share of the remaining way each time; others move this many degrees at most.
STEP_SHARE, DRIFT = 0.04, 0.0012
# With more assigned jobs than this, technicians complete the oldest.
MAX_ASSIGNED = 14
RETRY_S = 3.0


@dataclass
class _Due:
    """When each kind of step is due, in seconds of a monotonic clock."""

    form: float
    move: float
    work: float
    late: float


class Stream:
    """Keep one organization busy. `run` returns when `stopped` is set; `step` does what is due."""

    def __init__(
        self, organization: Organization, client: Client, controls: Controls, chance: random.Random, *, now: float
    ) -> None:
        self._organization, self._client, self._controls, self._chance = organization, client, controls, chance
        self._customers = draw_customers(random.Random("customers"))
        self._first = list(FIRST_FORMS_S)
        self._due = _Due(now + self._first.pop(0), now + MOVE_EVERY_S, now + WORK_EVERY_S, now + LATE_AFTER_S)
        self._answered_late: set[int] = set()
        self.sent = 0

    def run(self, stopped: threading.Event) -> None:
        """Step until `stopped` is set. A failure of the database or the simulator is logged, and retried."""
        while not stopped.wait(STEP_S):
            close_old_connections()
            try:
                self.step(time.monotonic())
            except (DatabaseError, requests.RequestException) as error:
                log.warning("demo_stream_failed", error=str(error).strip())

    def step(self, now: float) -> None:
        """Do what is due at `now`."""
        if now >= self._due.form:
            self._due.form = now + RETRY_S  # unless it succeeds
            if self._submit():
                self._due.form = now + (self._first.pop(0) if self._first else self._chance.uniform(*FORM_EVERY_S))
        if now >= self._due.move:
            self._due.move = now + MOVE_EVERY_S
            self._move()
        if now >= self._due.work:
            self._due.work = now + WORK_EVERY_S
            self._work()
        if now >= self._due.late:
            self._due.late = now + LATE_AFTER_S
            self._answer_late()

    def _submit(self) -> bool:
        """Submit a form. Return False if it was not accepted, for example while web is starting."""
        drawn = draw_request(self._chance, self._customers, clock.now())
        customer = drawn.customer
        body = {
            "customer_name": customer.name, "customer_phone": customer.phone, "service_type": drawn.service,
            "address": customer.address, "priority": drawn.priority, "notes": drawn.notes, "lat": customer.lat,
            "lng": customer.lng,
        }  # fmt: skip
        if self._chance.random() < STEAM_SHARE:
            body.update(service_type="steam-boiler", notes="Annual certificate.")
        elif self._chance.random() < WELL_SHARE:
            address = self._chance.choice(WELL_ADDRESSES)
            body.update(service_type="well-pump", notes="No water since this morning.", address=address)
            del body["lat"], body["lng"]
        answer = self._client.submit(Line(str(self.sent), "job", body=body))
        self.sent += answer.submission_id is not None
        return answer.submission_id is not None

    def _move(self) -> None:
        """Move some technicians: toward their job, else a little."""
        on_duty = Technician.objects.of(self._organization).filter(is_active=True, on_duty=True)
        people = self._chance.sample(list(on_duty.order_by("pk")), k=min(4, on_duty.count()))
        jobs = Job.objects.of(self._organization).filter(status="assigned", technician__in=people)
        places = {job.technician_id: job for job in jobs.exclude(lat=None).order_by("-pk")}
        for technician in people:
            lat = technician.lat + self._chance.uniform(-DRIFT, DRIFT)
            lng = technician.lng + self._chance.uniform(-DRIFT, DRIFT)
            job = places.get(technician.pk)
            if job is not None and job.lat is not None and job.lng is not None:
                lat += (job.lat - technician.lat) * STEP_SHARE
                lng += (job.lng - technician.lng) * STEP_SHARE
            technicians.move_technician(technician.pk, round(lat, 5), round(lng, 5))

    def _work(self) -> None:
        """Have technicians start their jobs, and complete the oldest."""
        assigned = Job.objects.of(self._organization).filter(status="assigned", technician__is_active=True)
        assigned = assigned.select_related("technician").order_by("assigned_at")
        fresh = assigned.filter(started_at=None, assigned_at__lt=clock.now() - timedelta(minutes=3))
        try:
            if (job := fresh.filter(attention_at=None).first()) is not None and self._chance.random() < 0.3:
                follow_up.mark_started(job.pk, actor=_actor(job.technician))
            if assigned.count() > MAX_ASSIGNED:
                started = assigned.exclude(started_at=None).first()
                if started is not None:
                    actions.complete(started.pk, actor=_actor(started.technician))
        except Conflict:
            pass  # a person acted first

    def _answer_late(self) -> None:
        """Have the technicians who answer late accept an expired offer of a job that nobody has."""
        phones = [person.phone for person in data.TECHNICIANS if person.phone_habit == "answers_late"]
        offers = Offer.objects.of(self._organization).filter(
            job__status="pending", status__in=("timed_out", "failed"), technician__phone__in=phones,
            settled_at__gt=clock.now() - timedelta(minutes=5),
        )  # fmt: skip
        offer = offers.exclude(pk__in=self._answered_late).select_related("technician").first()
        number = OutboundNumber.objects.of(self._organization).filter(pool__code="main").order_by("pk").first()
        if offer is not None and number is not None:
            self._answered_late.add(offer.pk)
            send_answer(self._controls, offer, self._chance.choice(("call_back", "text")), number.phone.as_e164)


def _actor(technician: Technician | None) -> Actor:
    assert technician is not None, "an assigned job has a technician"
    return Actor("technician", technician.pk, technician.name)
