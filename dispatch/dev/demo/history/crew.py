"""Simulate a cascade of the past: which technicians were considered, and how each answered the phone."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from accounts.models import Organization
from dispatch.core.events import Actor
from dispatch.dev.demo import data
from dispatch.dev.demo.history.requests import Request
from dispatch.jobs.models import ServiceType
from dispatch.technicians.h3_cells import distance_m
from dispatch.technicians.models import Technician

RADIUS_M, CONSIDERED = 60_000, 10
# Outcome of a call by a technician's habit: shares of accepted, declined, no_answer, busy, hangup.
ANSWERS = {
    "eager": (86, 5, 7, 1, 1), "friendly": (68, 16, 12, 2, 2), "picky": (32, 41, 22, 3, 2),
    "listens_twice": (90, 4, 5, 0, 1), "declines": (12, 76, 10, 1, 1), "ignores": (22, 6, 70, 1, 1),
    "answers_late": (30, 10, 58, 1, 1), "hangs_up": (24, 12, 12, 2, 50), "busy": (30, 10, 10, 48, 2),
    "voicemail": (22, 8, 60, 2, 8), "sends_away": (20, 30, 12, 36, 2),
}  # fmt: skip
OUTCOMES = ("accepted", "declined", "no_answer", "busy", "hangup")
REASONS = {
    "accepted": "", "declined": "pressed 2", "no_answer": "no answer", "busy": "busy",
    "hangup": "hung up without pressing a key",
}  # fmt: skip


@dataclass(frozen=True)
class Worker:
    """A technician with what the simulation needs. `skills`: ids."""

    row: Technician
    habit: str
    skills: frozenset[int]
    actor: Actor


@dataclass(frozen=True)
class Attempt:
    """One simulated offer. `ringing_at`: when the phone began to ring; `answered_at`: None if not answered."""

    worker: Worker
    distance_m: int
    outcome: str
    offered_at: datetime
    ringing_at: datetime
    answered_at: datetime | None
    settled_at: datetime

    @property
    def is_accepted(self) -> bool:
        return self.outcome == "accepted"

    @property
    def key(self) -> str:
        return {"accepted": "1", "declined": "2"}.get(self.outcome, "")


@dataclass
class Cascade:
    """A simulated cascade. `considered`: (worker, distance in meters, whether eligible), best first."""

    considered: list[tuple[Worker, int, bool]]
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def accepted(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts and self.attempts[-1].is_accepted else None

    @property
    def fit(self) -> int:
        return sum(is_fit for _, _, is_fit in self.considered)


class Crew:
    """The organization's technicians and services."""

    def __init__(self, organization: Organization) -> None:
        habits = {person.phone: person.phone_habit for person in data.TECHNICIANS}
        self.workers = [
            Worker(
                row,
                habits.get(row.phone.as_e164, "friendly"),
                frozenset(row.skill_ids),
                Actor("technician", row.pk, row.name),
            )
            for row in Technician.objects.of(organization).order_by("pk")
        ]
        services = ServiceType.objects.of(organization).prefetch_related("required_skills")
        self.services: dict[str, ServiceType] = {service.code: service for service in services}
        self._required = {
            code: frozenset(skill.pk for skill in service.required_skills.all())
            for code, service in self.services.items()
        }

    def rank(self, chance: random.Random, request: Request) -> list[tuple[Worker, int, bool]]:
        """Return the technicians in reach with the skills: (worker, distance in meters, whether eligible)."""
        near = []
        for worker in self.workers:
            if not self._required[request.service] <= worker.skills or not worker.row.on_duty:
                continue
            customer = request.customer
            meters = round(distance_m(worker.row.lat, worker.row.lng, customer.lat, customer.lng))
            if meters <= min(RADIUS_M, worker.row.radius_m or RADIUS_M):
                near.append((worker, meters, chance.random() > 0.12))
        near.sort(key=lambda entry: (not entry[2], entry[1] * chance.uniform(0.8, 1.3)))
        return near[:CONSIDERED]

    def dispatch(self, chance: random.Random, request: Request, *, exhausts: bool = False) -> Cascade:
        """Simulate the calls, one after another, until somebody accepts. `exhausts`: nobody does."""
        cascade = Cascade(self.rank(chance, request))
        at = request.at + timedelta(seconds=chance.uniform(0.6, 1.4))
        for worker, meters, is_fit in cascade.considered:
            if not is_fit:
                continue
            attempt = _attempt(chance, worker, meters, at, may_accept=not exhausts)
            cascade.attempts.append(attempt)
            if attempt.is_accepted:
                break
            at = attempt.settled_at + timedelta(seconds=chance.uniform(0.2, 0.8))
        return cascade


def _attempt(chance: random.Random, worker: Worker, meters: int, at: datetime, *, may_accept: bool) -> Attempt:
    weights = list(ANSWERS[worker.habit])
    if not may_accept:
        weights[0] = 0
    (outcome,) = chance.choices(OUTCOMES, weights)
    ringing = at + timedelta(seconds=chance.uniform(0.9, 2.2))
    answered = settled = None
    if outcome in ("accepted", "declined", "hangup"):
        answered = ringing + timedelta(seconds=chance.uniform(3, 14))
        settled = answered + timedelta(seconds=chance.uniform(7, 24))
    else:
        settled = ringing + timedelta(seconds=20 + chance.uniform(0, 15) if outcome == "no_answer" else 3)
    return Attempt(worker, meters, outcome, at, ringing, answered, settled)
