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
    """A verified report. `status`: that of the call after it. `call` is as before the group's first report."""

    call: ReportedCall
    event: WebhookEvent
    status: str
    arrived_at: datetime


class GroupWork(Protocol):
    """The part of one purpose in one group. All methods run in the group's transaction and pipeline."""

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Return for each report whether it can be applied in this group. Must not change anything."""

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Apply the state of these calls after their reports, in the order of the lock order of their subjects."""

    def document(self, call: ReportedCall) -> Document:
        """Return the prompt of a call whose request for it was accepted by `review`."""


# Begins a purpose's part of a group. It is given the ids of the calls, of any purpose, that reports may end. It is
# called before the calls are locked, and may lock rows that precede calls in the lock order, without waiting.
BeginWork = Callable[[Sequence[int]], GroupWork]

_groups: dict[str, BeginWork] = {}


def register_groups(purpose: str, begin: BeginWork) -> None:
    """Register a purpose's group handler. Called from AppConfig.ready() of the slice that places these calls."""
    _groups[purpose] = begin


def begin_all(ending: Sequence[int]) -> dict[str, GroupWork]:
    """Begin the part of each purpose."""
    return {purpose: begin(ending) for purpose, begin in _groups.items()}


class RecordedOnly:
    """The group work of purposes whose state does not depend on reports. Their prompts are not handled here."""

    def __init__(self, ending: Sequence[int]) -> None:
        pass

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Accept every report that is not a request for a prompt."""
        return [report.event.kind == "status" for report in reports]

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Do nothing."""

    def document(self, call: ReportedCall) -> Document:
        """Raise an error: `review` accepts no request for a prompt."""
        raise NotImplementedError
