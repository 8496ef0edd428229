"""What a kind of work is, and what a worker hands to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError
from rest_framework.exceptions import APIException, ValidationError

from accounts.models import Organization
from dispatch.core import idempotency
from dispatch.core.events import Actor
from dispatch.core.models import RememberedAnswer
from dispatch.schedules.rules.outcomes import FAILED, REFUSED, SUCCEEDED

log = structlog.get_logger(__name__)

# Under which name what runs have created is remembered (core.idempotency).
CREATED = "schedules.run"
LONGEST_ERROR = 500


@dataclass(frozen=True)
class Assignment:
    """One run in a worker's hands: `running`, in this epoch."""

    run_id: int
    epoch: int
    attempt: int
    organization_id: int
    schedule_id: int
    schedule: str
    trigger_at: datetime
    number: int | None
    payload: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def idempotency_key(self) -> str:
        """Of whatever this run creates: the same in every attempt."""
        return f"run-{self.run_id}"

    @property
    def actor(self) -> Actor:
        """Who did it, in the log of what is created."""
        return Actor(label=f"Schedule {self.schedule}")


@dataclass(frozen=True)
class Outcome:
    """What came of it. `again_in_s`: a receiver asked to be left alone for so long."""

    outcome: str
    result: dict[str, Any] | None = None
    error: str = ""
    again_in_s: float | None = None


@dataclass(frozen=True)
class Asker:
    """Stands for the request in the serializers of a kind's own API: they ask it for the organization only."""

    organization: Organization


class Kind:
    """One kind of work. `scope`: what an API key needs beside that for schedules, as the kind's own API asks."""

    name: str
    label: str
    scope: str
    most_at_once = 100

    @property
    def queue(self) -> str:
        """Its RQ queue."""
        return settings.SCHEDULE_KIND_QUEUES[self.name]

    def chunk_size(self) -> int:
        """How many runs one message carries at most."""
        return min(self.most_at_once, settings.SCHEDULE_CHUNK_SIZE)

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        """Raises ValidationError (with fields, as the kind's own API would) for what could not be carried out."""
        raise NotImplementedError

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Raises ValidationError; only calls to a URL have headers."""
        if headers:
            raise ValidationError({"headers": "Only calls to a URL have headers."})

    def summary(self, payload: Mapping[str, Any]) -> str:
        """What it does, in a line."""
        raise NotImplementedError

    def work(self, given: Sequence[Assignment], keep: Keep) -> Iterator[tuple[Assignment, Outcome]]:
        """Does it, and yields what came of each. What is not yielded was not begun and is given back."""
        raise NotImplementedError

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        """Of these runs, whose worker died, the results of those that were carried out, as far as can be known."""
        raise NotImplementedError


class OneByOne(Kind):
    """A kind that creates one thing per run, in one transaction with the record that it did."""

    most_at_once = 20

    def create(self, assignment: Assignment, organization: Organization) -> dict[str, Any]:
        """Creates it and returns the result; whatever it raises undoes all of it."""
        raise NotImplementedError

    def work(self, given: Sequence[Assignment], keep: Keep) -> Iterator[tuple[Assignment, Outcome]]:
        organizations = Organization.objects.in_bulk({one.organization_id for one in given})
        for one in given:
            if not keep(one):
                continue
            organization = organizations[one.organization_id]

            def make(one: Assignment = one, organization: Organization = organization) -> tuple[int, dict]:
                return 201, self.create(one, organization)

            yield one, attempt(lambda: create_once(one, make))  # noqa: B023  (called at once)

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        keys = {one.idempotency_key: one.run_id for one in given}
        organizations = {one.organization_id for one in given}
        found = RememberedAnswer.objects.filter(
            organization_id__in=organizations, endpoint=CREATED, key__in=list(keys)
        )
        return {keys[row.key]: json.loads(row.body) for row in found}


class Keep:
    """Asked before each run that takes its time: whether it is still ours to begin. Renews the leases of those
    that are left when a third of the lease has gone, and says no when there is no time left in this job."""

    def __init__(
        self, given: Sequence[Assignment], renew: Callable[[Sequence[Assignment]], set[int]], seconds: float
    ) -> None:
        self._left = {one.run_id: one for one in given}
        self._renew = renew
        self._began = time.monotonic()
        self._renewed = self._began
        self._seconds = seconds

    def __call__(self, one: Assignment) -> bool:
        now = time.monotonic()
        if now - self._began > self._seconds:
            return False
        if now - self._renewed > settings.SCHEDULE_LEASE_S / 3:
            mine = self._renew(list(self._left.values()))
            self._left = {run_id: left for run_id, left in self._left.items() if run_id in mine}
            self._renewed = now
        return self._left.pop(one.run_id, None) is not None


def attempt(call: Callable[[], dict[str, Any]]) -> Outcome:
    """`call`'s result as an outcome: what the kind's API would refuse is refused, what breaks has failed."""
    try:
        return Outcome(SUCCEEDED, call())
    except APIException as error:
        outcome = REFUSED if error.status_code < 500 and error.status_code not in (408, 429) else FAILED
        return Outcome(outcome, error=words(error))
    except DatabaseError:
        raise  # nobody could report it either
    except Exception as error:
        log.exception("a run failed")
        return Outcome(FAILED, error=f"{type(error).__name__}: {error}"[:LONGEST_ERROR])


def create_once(one: Assignment, make: Callable[[], tuple[int, dict]]) -> dict[str, Any]:
    """Runs `make` unless this run has created something in an earlier attempt; that is its result then."""
    _, result, _ = idempotency.remember(one.organization_id, CREATED, one.idempotency_key, {}, make)
    return result


def words(error: APIException) -> str:
    """What is wrong, in a line: "service_type: …; address: …"."""
    return "; ".join(_lines(error.detail))[:LONGEST_ERROR]


def _lines(detail: Any, field_name: str = "") -> Iterator[str]:
    if isinstance(detail, dict):
        for name, inner in detail.items():
            own = "" if name == "non_field_errors" else str(name)
            yield from _lines(inner, f"{field_name}.{own}".strip("."))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _lines(inner, field_name)
    else:
        yield f"{field_name}: {detail}" if field_name else str(detail)
