"""Play a provider outage during a run of the demo, and report what it did to the jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from django.db.models import QuerySet

from accounts.models import Organization
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.dev.demo.controls import Controls
from dispatch.jobs import rules
from dispatch.jobs.models import Job, Offer
from dispatch.telephony.models import Call

# The outage begins after this share of the forms, and only in a run of at least this many forms: with fewer, it
# might meet no job.
BEGIN_AFTER, MIN_FORMS = 0.4, 20
# It lasts at least this many seconds and until this many jobs wait, but no longer than the maximum. Jobs wait for
# `line_wait_s` (60 s) at most.
MIN_S, MIN_WAITING, MAX_S = 10.0, 3, 40.0
WAITS = (Job.WaitingFor.PROVIDER, Job.WaitingFor.ACCOUNT)
PROVIDER_REASONS = (Job.PendingReason.PROVIDER_DOWN, Job.PendingReason.ACCOUNT_REFUSED)


@dataclass(frozen=True)
class OutageFacts:
    """Describe an outage.

    `cause`: as shown to people. `recognized_s`, `lasted_s`: seconds, or None if that did not happen. `waited`:
    jobs that waited for the provider; of them, `assigned`, `handed_over` (to dispatchers, because nobody accepted)
    and `stuck`. `withdrawn`: offers that the outage withdrew, which count as not made. `used_up`: offers that
    counted although the provider never had their call.
    """

    cause: str
    recognized_s: float | None
    lasted_s: float | None
    waited: int
    assigned: int
    handed_over: int
    stuck: int
    withdrawn: int
    used_up: int

    @property
    def problems(self) -> list[str]:
        """Return the expected effects that are missing; empty if none is."""
        return [
            problem
            for is_wrong, problem in (
                (self.recognized_s is None, "the outage was not recognized"),
                (self.lasted_s is None, "the end of the outage was not recognized"),
                (self.waited == 0, "no job waited for the provider"),
                (self.stuck > 0, f"{self.stuck} jobs did not continue after the outage"),
                (self.used_up > 0, f"{self.used_up} offers were used up by the outage"),
            )
            if is_wrong
        ]


class OutageScene:
    """Begin and end an outage of the simulated provider. Call `step` often; `say` prints a line."""

    def __init__(
        self, organization: Organization, controls: Controls, forms: int, say: Callable[[str, str], None]
    ) -> None:
        self._organization, self._controls, self._say = organization, controls, say
        self._begin_after = round(forms * BEGIN_AFTER)
        self._fault_id: int | None = None
        self._began: float | None = None
        self.began_at: datetime | None = None
        self.is_finished = forms < MIN_FORMS

    def step(self, answered: int) -> None:
        """Take the next step when it is time. `answered`: forms that have a response."""
        if self.is_finished:
            return
        if self._began is None:
            if answered >= self._begin_after:
                self._fault_id = self._controls.begin_outage()
                self._began, self.began_at = time.monotonic(), clock.now()
                self._say("The phone provider stops responding (503)", "attention")
        elif self._fault_id is not None:
            lasted_s, waiting = time.monotonic() - self._began, self._jobs_waiting()
            if lasted_s >= MAX_S or (lasted_s >= MIN_S and waiting >= MIN_WAITING):
                self.stop()
                self._say(f"The phone provider responds again; {waiting} jobs wait for it", "good")
        elif not self._accounts().exclude(outage="").exists() or time.monotonic() - self._began > 3 * MAX_S:
            self.is_finished = True
            if not self._accounts().exclude(outage="").exists():
                self._say("The end of the outage was recognized; the jobs continue", "good")

    def stop(self) -> None:
        """End the outage if it has begun, no matter how many jobs wait."""
        if self._fault_id is not None:
            self._controls.end_outage(self._fault_id)
            self._fault_id = None

    def facts(self) -> OutageFacts | None:
        """Return what the outage did; None if it never began. Call it when all jobs have ended."""
        if self.began_at is None:
            return None
        events = Event.objects.filter(organization_id=self._organization.pk)
        began = events.filter(kind="account.outage_began").order_by("id").first()
        ended = events.filter(kind="account.outage_ended").order_by("id").last()
        waited = events.filter(kind="job.waiting", data__waiting_for__in=[str(wait) for wait in WAITS])
        jobs = Job.objects.of(self._organization).filter(pk__in=waited.values("subject_id"))
        assigned = jobs.filter(status=Job.Status.ASSIGNED).count()
        pending = jobs.filter(status=Job.Status.PENDING)
        handed_over = pending.exclude(pending_reason__in=PROVIDER_REASONS).count()
        waited_count = jobs.count()
        return OutageFacts(
            cause=str(began.data.get("description", "")) if began else "",
            recognized_s=(began.at - self.began_at).total_seconds() if began else None,
            lasted_s=ended.data.get("lasted_s") if ended else None,
            waited=waited_count,
            assigned=assigned,
            handed_over=handed_over,
            stuck=waited_count - assigned - handed_over,
            withdrawn=Offer.objects.of(self._organization).filter(outcome__in=rules.WITHDRAWN).count(),
            used_up=self._used_up(),
        )

    def _used_up(self) -> int:
        """Return how many offers counted as made although the provider never had their call."""
        never_there = Call.objects.of(self._organization).filter(purpose="offer", sid=None)
        closed = Offer.objects.of(self._organization).filter(status__in=("timed_out", "failed", "rescinded"))
        counted = closed.exclude(outcome__in=(*rules.UNCOUNTED_OUTCOMES, rules.Outcome.TAKEN))
        return int(counted.filter(pk__in=never_there.values("subject_id")).count())

    def _jobs_waiting(self) -> int:
        waiting = Job.objects.of(self._organization).filter(status=Job.Status.DISPATCHING, waiting_for__in=WAITS)
        return int(waiting.count())

    def _accounts(self) -> QuerySet[ProviderAccount]:
        accounts: QuerySet[ProviderAccount] = ProviderAccount.objects.of(self._organization)
        return accounts
