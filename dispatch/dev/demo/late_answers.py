"""Answer offers too late, by call-back and by text: the technician gets the job if nobody has it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from accounts.models import Organization
from dispatch.core.models import Event
from dispatch.dev.demo import data
from dispatch.dev.demo.controls import Controls
from dispatch.dev.demo.lines import Line
from dispatch.jobs.models import Job, Offer

# How long after the offer expired the technician answers (seconds).
DELAY_S = 2.0
# A technician whose late yes changes nothing tries once more after this time (seconds).
AGAIN_S = 20.0
MAX_ATTEMPTS = 2

WORDS = {"call_back": "called back", "text": "texted 1"}


@dataclass
class _Answer:
    """One answer: due at `due` (monotonic), sent `attempts` times."""

    due: float
    attempts: int = 0


class LateAnswers:
    """Send each late answer once its job is with the dispatchers. Call `step` often; `say` prints a line."""

    def __init__(
        self,
        organization: Organization,
        controls: Controls,
        lines: Iterable[Line],
        say: Callable[[Line, str, str], None],
    ) -> None:
        self._organization, self._controls, self._say = organization, controls, say
        self._lines = [line for line in lines if line.late_by]
        self._answers: dict[str, _Answer] = {}
        self._done: set[str] = set()

    @property
    def is_finished(self) -> bool:
        """Return whether every late answer has had its effect or used all attempts."""
        return len(self._done) == len(self._lines)

    def step(self, submissions: Mapping[str, int], *, all_answered: bool) -> None:
        """Send the answers that are due. `submissions`: submission ids by the line's ref."""
        for line in self._lines:
            if line.ref in self._done:
                continue
            if (pk := submissions.get(line.ref)) is None:
                if all_answered:
                    self._done.add(line.ref)  # rejected: reported as unaccounted
                continue
            job = Job.objects.filter(submission_id=pk).first()
            if job is None or job.status == Job.Status.DISPATCHING:
                continue
            if job.status == Job.Status.PENDING:
                self._answer_when_due(line, job)
            else:
                self._done.add(line.ref)

    def _answer_when_due(self, line: Line, job: Job) -> None:
        now = time.monotonic()
        answer = self._answers.setdefault(line.ref, _Answer(now + DELAY_S))
        if now < answer.due:
            return
        offer = job.offers.select_related("technician").order_by("-attempt").first()
        if offer is None or answer.attempts == MAX_ATTEMPTS:
            self._done.add(line.ref)
            return
        send_answer(self._controls, offer, line.late_by, data.RUN_LINES[0])
        answer.attempts, answer.due = answer.attempts + 1, now + AGAIN_S
        self._say(line, f"{offer.technician.name} {WORDS[line.late_by]}, after the offer had expired", "calling")


def send_answer(controls: Controls, offer: Offer, late_by: str, number: str) -> None:
    """Answer yes to the offer as its technician: call `number` back, or send it a text."""
    phone = offer.technician.phone.as_e164
    if late_by == "call_back":
        controls.call_back(phone, number)
    else:
        controls.text(phone, number, "1")


def late_acceptances(organization: Organization) -> dict[int, str]:
    """Return how each job of the organization was accepted after its offer had ended: job id → channel.

    An offer whose call fell into the outage is rescinded instead of timed out.
    """
    events = Event.objects.filter(organization_id=organization.pk)
    ended = events.filter(kind__in=("offer.timed_out", "offer.failed", "offer.rescinded")).values("subject_id")
    accepted = events.filter(kind="offer.accepted", subject_id__in=ended)
    return {event.data["job_id"]: str(event.data.get("by", "phone")) for event in accepted}
