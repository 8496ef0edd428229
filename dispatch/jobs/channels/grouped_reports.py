"""Apply the provider's reports on calls of offers in groups: those that change nothing about their offer."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.jobs import sql
from dispatch.jobs.services.offers import IN_PROGRESS
from dispatch.telephony import group_handlers
from dispatch.telephony.group_handlers import RecordedOnly, ReviewedReport
from dispatch.telephony.models import Call


class OfferReports(RecordedOnly):
    """The jobs' part of a group. It refuses reports whose offer has to change, and requests for prompts.

    What it accepts stays true: a closed offer stays closed, and a deadline that has started stays started.
    """

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Return for each report whether it changes nothing about its offer."""
        statuses = [report for report in reports if report.event.kind == "status"]
        unaffected = sql.unaffected_offers(
            [
                (report.call.subject_id, report.status in IN_PROGRESS, report.status == Call.Status.ANSWERED)
                for report in statuses
            ]
        )
        found = dict(zip(map(id, statuses), unaffected, strict=True))
        return [found.get(id(report), False) for report in reports]


def register() -> None:
    """Register the group handler of offer calls with telephony."""
    group_handlers.register_groups("offer", OfferReports)
