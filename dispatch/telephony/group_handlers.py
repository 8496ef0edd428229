"""Register what a purpose does with the provider's reports that are applied in groups (`services.report_groups`).

A purpose without such a handler receives its webhooks one by one (`handlers`). A group handler decides for each
report whether it can be applied in the group's transaction. It refuses what needs a lock that another session may
hold, a request to another server, or a rule that is rare: such a report is handled alone, as if there were no
groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from dispatch.telephony.handlers import Document
from dispatch.telephony.models import holder_of
from dispatch.telephony.providers.base import WebhookEvent


@dataclass(slots=True)
class ReportedCall:
    """The locked row of a call that a group reports on, with the columns that reports read or change.

    `has_ended`, `is_submitted`, `is_answered` and `is_canceled` say whether the moment of that name is set.
    `was_heard`: the person of a completed call heard its prompt (`unheard_calls.was_heard`).
    """

    pk: int
    organization_id: int
    purpose: str
    subject_id: int
    attempt: int
    account_id: int
    pool_id: int
    status: str
    sid: str | None
    last_sequence: int
    is_submitted: bool
    is_answered: bool
    has_ended: bool
    is_canceled: bool
    answered_by: str
    keys_pressed: str
    error_code: str
    context: Mapping[str, Any]
    duration_s: int | None = None
    was_heard: bool = False

    @property
    def holder(self) -> str:
        """Return the holder of the call's line."""
        return holder_of(self.purpose, self.subject_id, self.attempt)


class ReviewedReport(NamedTuple):
    """A verified report. `status`: that of the call after it. `call` is as before the group's first report.

    `key`: the pressed key, if the prompt before it asked for it. Another key, or none, repeats the prompt.
    """

    call: ReportedCall
    event: WebhookEvent
    status: str
    arrived_at: datetime
    key: str = ""

    @property
    def asks_for_document(self) -> bool:
        """Return whether the response is a document: a prompt, or the result of a key."""
        return self.event.kind != "status"


class GroupWork(Protocol):
    """The part of one purpose in one group. All methods run in the group's transaction.

    All but `apply_report` and `document` run in its pipeline. `applies_singly`: whether `apply_report` does
    anything.
    """

    applies_singly: bool

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Return for each report whether it can be applied in this group. Must not change anything."""

    def apply_keys(self, pressed: Sequence[ReviewedReport]) -> None:
        """Apply the keys, which `review` has accepted, in the order of their arrival. Called before `apply`."""

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Apply the state of these calls after their reports, in the order of the lock order of their subjects."""

    def apply_report(self, report: ReviewedReport, is_new: bool) -> None:
        """Apply one report with the services for single rows. Called after `apply`, in the order of arrival.

        `is_new`: it is not a repetition. If this raises an exception, the group is applied again without the
        report.
        """

    def document(self, report: ReviewedReport) -> Document:
        """Return the response to an accepted request for a document: a prompt, or the result of a key."""


# Begins a purpose's part of a group. It is given the ids of the calls, of any purpose, whose reports may change
# their subject: those that end, and those with a pressed key. It is called before the calls are locked, and may
# lock rows that precede calls in the lock order, without waiting.
BeginWork = Callable[[Sequence[int]], GroupWork]

_groups: dict[str, BeginWork] = {}


def register_groups(purpose: str, begin: BeginWork) -> None:
    """Register a purpose's group handler. Called from AppConfig.ready() of the slice that places these calls."""
    _groups[purpose] = begin


def begin_all(changing: Sequence[int]) -> dict[str, GroupWork]:
    """Begin the part of each purpose."""
    return {purpose: begin(changing) for purpose, begin in _groups.items()}


class RecordedOnly:
    """The group work of purposes whose state does not depend on reports. Their prompts are not handled here."""

    applies_singly = False

    def __init__(self, changing: Sequence[int]) -> None:
        pass

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Accept every report that is not a request for a document."""
        return [not report.asks_for_document for report in reports]

    def apply_keys(self, pressed: Sequence[ReviewedReport]) -> None:
        """Do nothing: `review` accepts no key."""

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Do nothing."""

    def apply_report(self, report: ReviewedReport, is_new: bool) -> None:
        """Do nothing."""

    def document(self, report: ReviewedReport) -> Document:
        """Raise an error: `review` accepts no request for a document."""
        raise NotImplementedError
