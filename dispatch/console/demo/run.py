"""One run of the demo on a running site: every form submitted, every job watched to its end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

import requests
from django.db.models import Count

from accounts.models import ApiKey, Membership, Organization
from dispatch.capacity import services as capacity
from dispatch.capacity.models import OutboundNumber
from dispatch.console.demo import phones, seed
from dispatch.console.demo.client import Answer, Client, FrontEnd
from dispatch.console.demo.lines import Line
from dispatch.console.demo.printing import Printer
from dispatch.console.demo.report import JobFacts, Outcome, settle
from dispatch.console.demo.watch import Happening, Watcher
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.jobs import services as jobs
from dispatch.jobs.models import Job, Submission
from notifications.models import Notification

# Short, so that a run takes about a minute.
POLICY = {
    "answer_timeout_s": 12,
    "ring_timeout_s": 5,
    "answered_extension_s": 10,
    "radius_m": 60_000,
    "max_candidates": 8,
    "line_wait_s": 60,
    "technician_wait_s": 40,
}
SLUG = "demo-run-"
EVERY_S = 0.4
# From the first form on. It ends when all are accounted for, about a minute on a quiet machine; a busy one may
# take its time, and only what hangs is ended by this and unaccounted for.
LONGEST_S = 900.0
STEP_S = 0.15


class Run:
    """`interrupted` is asked between steps and ends the run early."""

    def __init__(
        self, base_url: str, simulator_url: str, lines: list[Line], printer: Printer, *, chance: int,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._lines, self._printer, self._chance, self._interrupted = lines, printer, chance, interrupted
        self._simulator_url = simulator_url
        end_earlier_runs()
        self.organization = seed.run_organization(f"{SLUG}{clock.now():%Y%m%d-%H%M%S}", POLICY)
        self._client = Client(base_url, _keys(self.organization))
        self._answers: dict[str, Answer] = {}
        self._refs: dict[int, Line] = {}
        self._untold: list[Happening] = []
        self._began = clock.now()

    def run(self) -> list[Outcome]:
        """Submits, watches, and returns how each line ended."""
        self._tell_the_simulator()
        self._began = clock.now()
        deadline = time.monotonic() + LONGEST_S
        watcher = Watcher(self.organization.pk, self._happened)
        visitors = FrontEnd(self._client, self._lines, told=self._answered, seed=self._chance, every_s=EVERY_S)
        visitors.start()
        try:
            while time.monotonic() < deadline and not self._interrupted():
                over = visitors.finished and self._all_over()
                watcher.step()
                self._tell_happenings()
                if over:
                    break
                time.sleep(STEP_S)
        finally:
            visitors.stop()
        watcher.step()
        self._tell_happenings()
        return settle(self._lines, self._answers, self._facts())

    def complaints(self) -> list[str]:
        """What the simulated provider found wrong with our requests and answers."""
        found = _plain().get(f"{self._simulator_url}/control/complaints", timeout=60).json()
        return [f"{one['about']}: {one['text']}" for one in found["complaints"]]

    # --- as it goes -------------------------------------------------------------------------------------------

    def _tell_the_simulator(self) -> None:
        session = _plain()
        for account in phones.accounts():
            session.put(f"{self._simulator_url}/control/accounts", json=account, timeout=60).raise_for_status()
        handsets = phones.drawn_handsets(self._chance)
        session.put(f"{self._simulator_url}/control/handsets", json=handsets, timeout=60).raise_for_status()

    def _answered(self, line: Line, answer: Answer) -> None:
        self._answers[line.ref] = answer
        if (pk := answer.submission_id) is not None:
            if line.expect == "repeat":
                self._tell(line, "Answered with the first answer to this key", "off")
            if line.expect != "repeat" or pk not in self._refs:
                self._refs[pk] = line
        else:
            refused = f"Refused with {answer.status}: {answer.detail}" if answer.status else answer.error
            self._tell(line, refused.rstrip(": "), "late")

    def _happened(self, happening: Happening) -> None:
        if happening.submission_id is not None:
            self._untold.append(happening)

    def _tell_happenings(self) -> None:
        """The log may be quicker than the answer that says which form it is about: that waits."""
        untold, self._untold = self._untold, []
        for happening in untold:
            line = self._refs.get(happening.submission_id or 0)
            if line is None:
                self._untold.append(happening)
                continue
            at = (happening.at - self._began).total_seconds()
            self._printer.happening(at, line.ref, line.label, happening.text, happening.tone)

    def _tell(self, line: Line, text: str, tone: str) -> None:
        at = (clock.now() - self._began).total_seconds()
        self._printer.happening(at, line.ref, line.label, text, tone)

    def _all_over(self) -> bool:
        open_forms = Submission.objects.of(self.organization).filter(status=Submission.Status.RECEIVED)
        open_jobs = Job.objects.of(self.organization).filter(status=Job.Status.DISPATCHING)
        if open_forms.exists() or open_jobs.exists():
            return False
        pending = Job.objects.of(self.organization).filter(status=Job.Status.PENDING).values("pk")
        told = Notification.objects.of(self.organization).filter(kind="job.pending", subject_id__in=pending)
        return told.count() >= len(pending) * self._dispatchers()

    # --- at the end -------------------------------------------------------------------------------------------

    def _dispatchers(self) -> int:
        members = Membership.objects.of(self.organization)
        return members.filter(role=Membership.Role.DISPATCHER, is_active=True).count()

    def _facts(self) -> dict[int, JobFacts]:
        dispatchers = self._dispatchers()
        told: dict[int, int] = dict(
            Notification.objects.of(self.organization)
            .filter(kind="job.pending")
            .values_list("subject_id")
            .annotate(Count("user_id", distinct=True))
        )
        found = {}
        for job in Job.objects.of(self.organization).select_related("submission").annotate(tries=Count("offers")):
            took = job.assigned_at - job.submission.created_at if job.assigned_at else None
            found[job.submission_id] = JobFacts(
                job_id=job.pk,
                status=job.status,
                pending_reason=job.pending_reason,
                pending_words=job.get_pending_reason_display(),
                tries=job.tries,
                assigned_after_s=took.total_seconds() if took else None,
                told=told.get(job.pk, 0),
                dispatchers=dispatchers,
                api_status=_job_status(self._client.status_of(job.submission_id)),
            )
        return found


def end_earlier_runs() -> None:
    """Cancels what a run that was broken off left behind, and has earlier runs give up their caller numbers, which
    this one calls from."""
    left = Job.objects.filter(organization__slug__startswith=SLUG, status=Job.Status.DISPATCHING)
    for pk in left.values_list("pk", flat=True):
        jobs.cancel(pk, actor=SYSTEM, version=None, reason="The demo was started again.")
    for number in OutboundNumber.objects.filter(organization__slug__startswith=SLUG, is_paused=False):
        capacity.set_paused(number, True, actor=SYSTEM)


def _keys(organization: Organization) -> dict[str, str]:
    scopes = [ApiKey.Scope.SUBMIT, ApiKey.Scope.READ]
    return {
        "": seed.new_api_key(organization, "Demo form", scopes),
        "read": seed.new_api_key(organization, "Demo reader", [ApiKey.Scope.READ]),
        "wrong": f"dk_nobody00_{secrets.token_urlsafe(32)}",
    }


def _job_status(answer: Answer) -> str:
    job: Any = answer.body.get("job") if isinstance(answer.body, dict) else None
    return str(job.get("status", "")) if isinstance(job, dict) else ""


def _plain() -> requests.Session:
    session = requests.Session()
    session.trust_env = False
    return session
