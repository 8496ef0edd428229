"""Apply the provider's reports on calls of offers in groups: progress, requests for prompts, and first keys.

A group shares one transaction, but the services of jobs change single rows, so each report takes its statements.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from dispatch.core.db import prepared
from dispatch.jobs import sql
from dispatch.jobs.channels import voice
from dispatch.jobs.models import Offer
from dispatch.jobs.rules import PLACED_STATUSES, phrases
from dispatch.jobs.services import Answer
from dispatch.jobs.services.answers import apply_first_key
from dispatch.jobs.services.offers import IN_PROGRESS, start_offer_clock
from dispatch.jobs.services.transitions import find_free_offers
from dispatch.technicians import services as technicians
from dispatch.telephony import group_handlers
from dispatch.telephony.group_handlers import ReportedCall, ReviewedReport
from dispatch.telephony.handlers import Document
from dispatch.telephony.models import Call

ANSWER_KEYS = (phrases.ACCEPT_KEY, phrases.DECLINE_KEY)
# The whole group waits for each answer, which takes several statements. Django's threads apply what is beyond.
MAX_ANSWERS = 20


class _Ongoing(NamedTuple):
    """The call of an offer after a report of this group. None: it was answered just now."""

    status: str
    answered_at: datetime | None = None


class OfferReports:
    """The jobs' part of a group. It refuses what ends an offer, except its first key, and what needs other rows.

    What it accepts without a lock stays true: a closed offer stays closed, and a deadline that has started stays
    started. A key is accepted only for a job's first offer, so no answer to another offer can count before it.
    """

    applies_singly = True

    def __init__(self, changing: Sequence[int]) -> None:
        self._offers: dict[int, Offer] = {}
        self._answers: dict[int, Answer] = {}

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Return for each report whether it can be applied in this group."""
        statuses = [at for at, report in enumerate(reports) if not report.asks_for_document]
        unaffected = self._find_unaffected(reports, statuses)
        moving = {at for at in statuses if at not in unaffected and reports[at].status in IN_PROGRESS}
        self._lock(
            {reports[at].call.subject_id for at in range(len(reports)) if at in moving or at not in statuses}
        )
        answering = [report.call.subject_id for report in reports if report.key in ANSWER_KEYS][:MAX_ANSWERS]
        answerable = self._lock_answerable(answering) if answering else set()
        accepted = []
        for at, report in enumerate(reports):
            is_accepted = at in unaffected or self._can_apply(report, answerable)
            if is_accepted and report.key in ANSWER_KEYS:
                answerable.discard(report.call.subject_id)  # a second key of the call waits for the first
            accepted.append(is_accepted)
        return accepted

    @staticmethod
    def _find_unaffected(reports: Sequence[ReviewedReport], statuses: Sequence[int]) -> set[int]:
        """Return the places of the status reports that change nothing about their offers."""
        found = sql.unaffected_offers(
            [
                (report.call.subject_id, report.status in IN_PROGRESS, report.status == Call.Status.ANSWERED)
                for report in (reports[at] for at in statuses)
            ]
        )
        return {at for at, is_unaffected in zip(statuses, found, strict=True) if is_unaffected}

    def apply_keys(self, pressed: Sequence[ReviewedReport]) -> None:
        """Do nothing: keys are applied one by one."""

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Do nothing: offers are changed one by one."""

    def apply_report(self, report: ReviewedReport, is_new: bool) -> None:
        """Start or extend the offer's deadline, then apply the key."""
        offer = self._offers.get(report.call.subject_id)
        if offer is None or offer.status != Offer.Status.PENDING:
            return
        if report.status in IN_PROGRESS:
            start_offer_clock(offer.job, offer, _Ongoing(report.status))
        if is_new and report.key in ANSWER_KEYS:
            prepared.set_local(**_SHORT_WAITS)
            self._answers[offer.pk] = apply_first_key(offer.job, offer, report.key)

    def document(self, report: ReviewedReport) -> Document:
        """Return the spoken offer, or the result of the answer."""
        offer = self._offers[report.call.subject_id]
        answer = self._answers.get(offer.pk)
        return voice.prompt_of(offer) if answer is None else voice.result_prompt(answer, offer)

    def _lock(self, offer_ids: set[int]) -> None:
        """Lock these pending offers with their dispatching jobs, except what other sessions have locked."""
        if not offer_ids:
            return
        self._offers |= find_free_offers(offer_ids, "job__service_type", "job__organization")()

    def _lock_answerable(self, offer_ids: Sequence[int]) -> set[int]:
        """Return the offers that are the only ones of their jobs, and whose technicians could be locked."""
        offers = [self._offers[pk] for pk in offer_ids if pk in self._offers]
        job_ids = prepared.integers(offer.job_id for offer in offers)
        alone = {job_id for (job_id,) in prepared.fetch_all(sql.WITH_ONE_OFFER, [job_ids])}
        offers = [offer for offer in offers if offer.job_id in alone]
        free = technicians.lock_free(offer.technician_id for offer in offers)
        return {offer.pk for offer in offers if offer.technician_id in free}

    def _can_apply(self, report: ReviewedReport, answerable: set[int]) -> bool:
        offer, call = self._offers.get(report.call.subject_id), report.call
        if offer is None or report.status not in IN_PROGRESS or report.status not in PLACED_STATUSES:
            return False
        is_open = offer.job.paused_at is None and offer.technician.is_active
        was_answered = call.is_answered and offer.answered_at is None  # at a time that only its row knows
        if not is_open or call.is_canceled or call.has_ended or was_answered:
            return False
        if report.key not in ANSWER_KEYS:
            return True
        is_in_time = report.arrived_at < offer.expires_at
        return is_in_time and not call.keys_pressed and offer.pk in answerable


# For rows that only the services of jobs know.
_SHORT_WAITS = {"lock_timeout": "500"}


def register() -> None:
    """Register the group handler of offer calls with telephony."""
    group_handlers.register_groups("offer", OfferReports)
