"""Run the demo on a running stack: submit every form and watch every job to its end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from typing import Any

from django.db.models import Count

from accounts.models import ApiKey, Membership, Organization
from dispatch.capacity import services as capacity
from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.dev.demo import phones, seed
from dispatch.dev.demo.client import Answer, Client, FrontEnd
from dispatch.dev.demo.controls import Controls
from dispatch.dev.demo.late_answers import LateAnswers, late_acceptances
from dispatch.dev.demo.lines import Line
from dispatch.dev.demo.outage import OutageFacts, OutageScene
from dispatch.dev.demo.printing import Printer
from dispatch.dev.demo.report import JobFacts, Outcome, classify_outcomes
from dispatch.dev.demo.watch import JobEvent, Watcher
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
# Time limit from the first form. A run takes about a minute on an idle machine. The limit only ends a run that
# hangs; its open forms are unaccounted for.
MAX_RUN_S = 900.0
STEP_S = 0.15


class Run:
    """Run the demo once. `interrupted` is polled between steps, and ends the run early."""

    def __init__(
        self, base_url: str, simulator_url: str, lines: list[Line], printer: Printer, *, chance: int,
        interrupted: Callable[[], bool] = lambda: False,
    ) -> None:  # fmt: skip
        self._lines, self._printer, self._chance, self._interrupted = lines, printer, chance, interrupted
        self._controls = Controls(simulator_url)
        self._earlier = end_earlier_runs()
        self.organization = seed.run_organization(f"{SLUG}{clock.now():%Y%m%d-%H%M%S}", POLICY)
        self._client = Client(base_url, _keys(self.organization))
        self._answers: dict[str, Answer] = {}
        self._refs: dict[int, Line] = {}
        self._unprinted: list[JobEvent] = []
        self._began = clock.now()
        self._outage = OutageScene(self.organization, self._controls, len(lines), self._say)
        self._late = LateAnswers(self.organization, self._controls, lines, self._print)

    def run(self) -> list[Outcome]:
        """Submit, watch, and return how each line ended."""
        self._configure_simulator()
        self._began = clock.now()
        deadline = time.monotonic() + MAX_RUN_S
        watcher = Watcher(self.organization.pk, self._record_event)
        visitors = FrontEnd(
            self._client, self._lines, on_answer=self._record_answer, seed=self._chance, every_s=EVERY_S
        )
        visitors.start()
        try:
            while time.monotonic() < deadline and not self._interrupted():
                all_answered = visitors.finished
                self._outage.step(len(self._answers))
                self._late.step({line.ref: pk for pk, line in list(self._refs.items())}, all_answered=all_answered)
                is_over = (
                    all_answered and self._outage.is_finished and self._late.is_finished and self._all_jobs_ended()
                )
                watcher.step()
                self._print_events()
                if is_over:
                    break
                time.sleep(STEP_S)
        finally:
            self._outage.stop()
            visitors.stop()
        watcher.step()
        self._print_events()
        return classify_outcomes(self._lines, self._answers, self._facts())

    def complaints(self) -> list[str]:
        """Return the errors that the simulated provider found in our requests and answers."""
        return self._controls.complaints()

    def outage(self) -> OutageFacts | None:
        """Return what the provider outage did, or None if the run had none."""
        return self._outage.facts()

    # --- While running -------------------------------------------------------------------------------------------

    def _configure_simulator(self) -> None:
        for earlier in self._earlier:  # a phone that calls a number reaches the first account that has it
            self._controls.set_account(
                {"sid": earlier.account_sid, "auth_token": earlier.auth_token, "numbers": []}
            )
        for account in phones.accounts():
            self._controls.set_account(account)
        self._controls.set_handsets(phones.drawn_handsets(self._chance))

    def _record_answer(self, line: Line, answer: Answer) -> None:
        self._answers[line.ref] = answer
        if (pk := answer.submission_id) is not None:
            if line.expect == "repeat":
                self._print(line, "Answered with the first response to this idempotency key", "off")
            if line.expect != "repeat" or pk not in self._refs:
                self._refs[pk] = line
        else:
            rejection = f"Rejected with {answer.status}: {answer.detail}" if answer.status else answer.error
            self._print(line, rejection.rstrip(": "), "late")

    def _record_event(self, event: JobEvent) -> None:
        if event.submission_id is not None:
            self._unprinted.append(event)

    def _print_events(self) -> None:
        """Print new events. An event that arrives before the response that identifies its form waits."""
        unprinted, self._unprinted = self._unprinted, []
        for event in unprinted:
            line = self._refs.get(event.submission_id or 0)
            if line is None:
                self._unprinted.append(event)
                continue
            at = (event.at - self._began).total_seconds()
            self._printer.event(at, line.ref, line.label, event.text, event.tone)

    def _print(self, line: Line, text: str, tone: str) -> None:
        at = (clock.now() - self._began).total_seconds()
        self._printer.event(at, line.ref, line.label, text, tone)

    def _say(self, text: str, tone: str) -> None:
        at = (clock.now() - self._began).total_seconds()
        self._printer.event(at, "", "phone provider", text, tone)

    def _all_jobs_ended(self) -> bool:
        open_forms = Submission.objects.of(self.organization).filter(status=Submission.Status.RECEIVED)
        open_jobs = Job.objects.of(self.organization).filter(status=Job.Status.DISPATCHING)
        if open_forms.exists() or open_jobs.exists():
            return False
        pending = Job.objects.of(self.organization).filter(status=Job.Status.PENDING).values("pk")
        notifications = Notification.objects.of(self.organization).filter(
            kind="job.pending", subject_id__in=pending
        )
        return notifications.count() >= len(pending) * self._dispatchers()

    # --- At the end ----------------------------------------------------------------------------------------------

    def _dispatchers(self) -> int:
        members = Membership.objects.of(self.organization)
        return members.filter(role=Membership.Role.DISPATCHER, is_active=True).count()

    def _facts(self) -> dict[int, JobFacts]:
        dispatchers = self._dispatchers()
        notified: dict[int, int] = dict(
            Notification.objects.of(self.organization)
            .filter(kind="job.pending")
            .values_list("subject_id")
            .annotate(Count("user_id", distinct=True))
        )
        late = late_acceptances(self.organization)
        facts = {}
        for job in Job.objects.of(self.organization).select_related("submission").annotate(tries=Count("offers")):
            took = job.assigned_at - job.submission.created_at if job.assigned_at else None
            facts[job.submission_id] = JobFacts(
                job_id=job.pk,
                status=job.status,
                pending_reason=job.pending_reason,
                pending_words=job.get_pending_reason_display(),
                tries=job.tries,
                assigned_after_s=took.total_seconds() if took else None,
                notified=notified.get(job.pk, 0),
                dispatchers=dispatchers,
                api_status=_job_status(self._client.status_of(job.submission_id)),
                late_by=late.get(job.pk, ""),
            )
        return facts


def end_earlier_runs() -> list[ProviderAccount]:
    """Cancel the jobs of interrupted runs, and pause the caller numbers of earlier runs.

    Return the provider accounts of earlier runs, which are inactive now.
    """
    left = Job.objects.filter(organization__slug__startswith=SLUG, status=Job.Status.DISPATCHING)
    for pk in left.values_list("pk", flat=True):
        jobs.cancel(pk, actor=SYSTEM, version=None, reason="The demo was restarted.")
    for number in OutboundNumber.objects.filter(organization__slug__startswith=SLUG, is_paused=False):
        capacity.set_paused(number, True, actor=SYSTEM)
    accounts = list(ProviderAccount.objects.filter(organization__slug__startswith=SLUG, is_active=True))
    for account in accounts:
        account.is_active = False
        capacity.save_row(account, {"is_active": False}, actor=SYSTEM)
    return accounts


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
