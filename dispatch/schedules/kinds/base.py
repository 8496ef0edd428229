"""Define the base classes of the kinds of work, and the data that a worker passes to them."""

from __future__ import annotations

import json
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import connection
from rest_framework.exceptions import APIException, ValidationError
from rq.timeouts import BaseTimeoutException

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.api import idempotency
from dispatch.core.api.problems import LimitReached
from dispatch.core.db.errors import is_temporary
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.models import RememberedAnswer
from dispatch.schedules.rules import outcomes
from dispatch.schedules.rules.outcomes import CANCELLED, DEFERRED, FAILED, REFUSED, SUCCEEDED

log = structlog.get_logger(__name__)

# The endpoint name under which runs record their results (core.api.idempotency).
CREATED = "schedules.run"
MAX_ERROR_LENGTH = 500
# How often a worker looks for requests to cancel its runs.
CANCEL_POLL_S = 1.0


@dataclass(frozen=True)
class Assignment:
    """One run that a worker has started: `running`, in this epoch."""

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
    # Why the run cannot be executed, or "".
    problem: str = ""
    # Since when the attempt has been deferred, because no request could be made.
    deferred_since: datetime | None = None

    @property
    def idempotency_key(self) -> str:
        """Return the idempotency key of this run, which is the same in every attempt."""
        return f"run-{self.run_id}"

    @property
    def actor(self) -> Actor:
        """Return the actor for the event log."""
        return Actor(label=f"Schedule {self.schedule}")


@dataclass(frozen=True)
class Outcome:
    """The result of an attempt. `again_in_s` is the delay that a receiver asked for before the next attempt.

    A DEFERRED attempt did nothing: it is made again after `again_in_s` and spends no retry.
    """

    outcome: str
    result: dict[str, Any] | None = None
    error: str = ""
    again_in_s: float | None = None


@dataclass(frozen=True)
class RequestStandIn:
    """A stand-in for the request in serializers of a kind's own API, which read only its organization."""

    organization: Organization


class Kind:
    """One kind of work.

    `scope` is the API scope of the kind's own API, required in addition to the scope for schedules.
    """

    name: str
    label: str
    scope: str
    most_at_once = 100

    @property
    def queue(self) -> str:
        """Return the RQ queue."""
        return settings.SCHEDULE_KIND_QUEUES[self.name]

    def chunk_size(self) -> int:
        """Return the maximum number of runs per message."""
        return min(self.most_at_once, settings.SCHEDULE_CHUNK_SIZE)

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        """Validate the payload. Raises ValidationError by field, as the kind's own API does."""
        raise NotImplementedError

    def check_headers(self, headers: Mapping[str, str]) -> None:
        """Validate the headers. Raises ValidationError unless the kind accepts headers; only URL calls do."""
        if headers:
            raise ValidationError({"headers": _("Only URL calls have headers.")})

    def summary(self, payload: Mapping[str, Any]) -> str:
        """Summarize the payload in one line."""
        raise NotImplementedError

    def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome] | None]:
        """Execute the runs and yield each with its outcome.

        None in between means "store the outcomes so far now". Runs that are not yielded were not begun; they are
        requeued. Work that takes more than a second asks `keep.is_canceled(assignment)` from time to time; if it
        is, the work stops and yields `canceled()`.
        """
        raise NotImplementedError

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        """Return run id → result for those of these runs that were executed before their worker died, if known."""
        raise NotImplementedError


class CreateOnceKind(Kind):
    """A kind that creates one object per run, in the same transaction as the record of the result."""

    most_at_once = 20

    def create(self, assignment: Assignment, organization: Organization) -> dict[str, Any]:
        """Create the object and return the result. An exception rolls the transaction back."""
        raise NotImplementedError

    def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome] | None]:
        organizations = Organization.objects.in_bulk({assignment.organization_id for assignment in given})
        for assignment in given:
            if not keep(assignment):
                continue
            organization = organizations[assignment.organization_id]

            def make(
                assignment: Assignment = assignment, organization: Organization = organization
            ) -> tuple[int, dict]:
                return 201, self.create(assignment, organization)

            yield assignment, attempt(lambda: create_once(assignment, make))  # noqa: B023  (called at once)

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        keys = {assignment.idempotency_key: assignment.run_id for assignment in given}
        organizations = {assignment.organization_id for assignment in given}
        answers = RememberedAnswer.objects.filter(
            organization_id__in=organizations, endpoint=CREATED, key__in=list(keys)
        )
        return {keys[row.key]: json.loads(row.body) for row in answers}


class LeaseCheck:
    """Decide whether a run may begin. Call it before each run that may take long.

    It renews the leases of the remaining runs when a third of the lease has passed, and returns False when a lease
    is lost, the run was canceled, or the job has no time left.
    """

    def __init__(
        self,
        given: Sequence[Assignment],
        renew: Callable[[Sequence[Assignment]], set[int]],
        find_canceled: Callable[[Sequence[int]], set[int]],
        seconds: float,
    ) -> None:
        self._given = [assignment.run_id for assignment in given]
        self._find_canceled = find_canceled
        self._canceled: set[int] = set()
        self._left = {assignment.run_id: assignment for assignment in given}
        self.begun: list[Assignment] = []
        self._renew = renew
        self._began = time.monotonic()
        self._renewed = self._began
        self._polled = -math.inf  # the first run already asks
        self._seconds = seconds

    def __call__(self, assignment: Assignment) -> bool:
        now = time.monotonic()
        if now - self._began > self._seconds:
            return False
        if now - self._renewed > settings.SCHEDULE_LEASE_S / 3:
            renewed = self._renew(list(self._left.values()))
            self._left = {run_id: left for run_id, left in self._left.items() if run_id in renewed}
            self._renewed = now
        if self._left.pop(assignment.run_id, None) is None or self.is_canceled(assignment):
            return False
        self.begun.append(assignment)
        return True

    def is_canceled(self, assignment: Assignment) -> bool:
        """Return whether the run's cancellation was requested, as far as the last poll that succeeded shows.

        An unavailable database does not stop the work: requests that were sent would be sent again.
        """
        if time.monotonic() - self._polled >= CANCEL_POLL_S:
            try:
                self._canceled = self._find_canceled(self._given)
            except Exception as error:
                if not is_temporary(error):
                    raise
                log.warning("cancellations_not_read", error=str(error).strip())
                connection.close_if_unusable_or_obsolete()
            self._polled = time.monotonic()
        return assignment.run_id in self._canceled


def is_undecided(error: BaseException) -> bool:
    """Return whether an error leaves open if the run was executed, which the reconciler then establishes.

    The database was unavailable, or the time limit of the worker's job was reached.
    """
    return isinstance(error, BaseTimeoutException) or is_temporary(error)


def attempt(call: Callable[[], dict[str, Any]]) -> Outcome:
    """Return the result of `call` as an outcome.

    An error that the kind's API answers with a 4xx status is REFUSED; other errors are FAILED, and so is a reached
    limit of the organization, which a later attempt may find free.
    """
    try:
        return Outcome(SUCCEEDED, call())
    except LimitReached as error:
        return Outcome(FAILED, error=describe_errors(error))
    except APIException as error:
        outcome = REFUSED if error.status_code < 500 and error.status_code not in (408, 429) else FAILED
        return Outcome(outcome, error=describe_errors(error))
    except Exception as error:
        if is_undecided(error):
            raise
        return failed(error)


def canceled(reason: str = mark("It was canceled while it was running.")) -> Outcome:
    """Return the outcome of a run that was stopped because its cancellation was requested."""
    return Outcome(CANCELLED, error=reason)


def defer(assignment: Assignment, why: str, error: str, wait_s: float = 0.0) -> Outcome:
    """Return the outcome of an attempt that cannot be made now: deferred, or failed if that has lasted too long.

    `why` is a stable key of at most 16 characters. `wait_s` is the shortest delay that makes sense.
    """
    deferred_s = (
        (clock.now() - assignment.deferred_since).total_seconds() if assignment.deferred_since is not None else 0.0
    )
    if deferred_s > settings.OUTBOX_DEFERRAL_LIMIT_S:
        return Outcome(FAILED, error=error)
    delay_s = outcomes.deferral_s(deferred_s, wait_s, random.random())
    return Outcome(DEFERRED, {"waiting_for": why}, error, delay_s)


def failed(error: Exception) -> Outcome:
    """Log an error that affects only this run and return it as an outcome. Call it inside the except block."""
    log.exception("run_failed")
    return Outcome(FAILED, error=f"{type(error).__name__}: {error}"[:MAX_ERROR_LENGTH])


def create_once(assignment: Assignment, make: Callable[[], tuple[int, dict]]) -> dict[str, Any]:
    """Run `make` and return its result, or the result that an earlier attempt of this run recorded."""
    _, result, _ = idempotency.run_once(assignment.organization_id, CREATED, assignment.idempotency_key, {}, make)
    return result


def describe_errors(error: APIException) -> str:
    """Format the errors in one line: "service_type: …; address: …"."""
    return "; ".join(_lines(error.detail))[:MAX_ERROR_LENGTH]


def _lines(detail: Any, field_name: str = "") -> Iterator[str]:
    if isinstance(detail, dict):
        for name, inner in detail.items():
            part = "" if name == "non_field_errors" else str(name)
            yield from _lines(inner, f"{field_name}.{part}".strip("."))
    elif isinstance(detail, list):
        for inner in detail:
            yield from _lines(inner, field_name)
    else:
        yield f"{field_name}: {detail}" if field_name else str(detail)
