"""Apply the provider's reports on calls in groups: many reports in one transaction.

A report that the group cannot apply is referred: nothing of it was written, and it is handled alone, as if there
were no groups (`webhooks`). That is every report that is not verified, whose call another session has locked, that
is about another call than its URL says, or that its purpose refuses. What follows for the same call is referred
with it, so that the order stays. So a group never waits for a lock, and writes no refusal.

A key is recorded and applied in the same transaction. One that was recorded before is referred: its webhook may
not have applied it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple

import structlog
from django.db import transaction

from dispatch.capacity import line_leases
from dispatch.core import clock, events, fault_injection
from dispatch.core.db import prepared
from dispatch.core.db.errors import is_database_away
from dispatch.core.events import EventRow
from dispatch.telephony import group_handlers, report_sql, rules, webhook_urls
from dispatch.telephony.group_handlers import GroupWork, ReportedCall, ReviewedReport
from dispatch.telephony.handlers import Redirect, VoicePrompt
from dispatch.telephony.providers.base import WebhookEvent
from dispatch.telephony.services import report_signers, reported_calls, unheard_calls
from dispatch.telephony.services.calls import PROVIDER
from dispatch.telephony.services.report_signers import Signed, Signer

log = structlog.get_logger(__name__)

# The kinds of webhooks that are applied in groups.
STATUS, VOICE, GATHER = "status", "voice", "gather"
KINDS = frozenset({STATUS, VOICE, GATHER})


class Report(NamedTuple):
    """A webhook that waits for its group. `signer`: the account whose cached token has signed it, if known.

    `step` and `accepted_keys` are those of the prompt that a key follows, as its URL has them.
    """

    provider: str
    call_id: int
    event: WebhookEvent
    signed: Signed
    signer: Signer | None
    arrived_at: datetime
    step: int = 0
    accepted_keys: str = ""


class Applied(NamedTuple):
    """The response to a report that is applied and committed: no document, or one with its content type."""

    content_type: str = ""
    body: bytes = b""


REFERRED = None


def apply_group(reports: Sequence[Report]) -> list[Applied | None]:
    """Apply reports in the order of their arrival, and return their responses: REFERRED for those not applied.

    What is returned is committed. Raises an exception if nothing was. Call it outside any transaction.
    """
    failed: set[int] = set()
    while True:
        group = _Group(reports, failed)
        group.verify()
        if not group.open:
            return group.answers
        group.find_fallbacks()
        try:
            with transaction.atomic():
                with prepared.pipeline():
                    prepared.prefer_index_plans()
                    group.read()
                    group.review()
                    group.write()
                group.apply_singly()
                group.build_answers()
                fault_injection.crash_point("telephony.reports.before_commit")
        except _ReportFailed as failure:  # its error is Django's: it is referred
            log.warning("report_not_applied_in_group", call=reports[failure.at].call_id, error=str(failure))
            failed.add(failure.at)
            continue
        fault_injection.crash_point("telephony.webhook.committed")
        return group.answers


class _ReportFailed(Exception):
    """A report could not be applied singly. The transaction is rolled back."""

    def __init__(self, at: int, error: Exception) -> None:
        super().__init__(str(error).strip() or type(error).__name__)
        self.at = at


class _Group:
    """One group. `open`: the places of the reports that are not referred. `failed`: those that are at once."""

    def __init__(self, reports: Sequence[Report], failed: Collection[int] = ()) -> None:
        self.reports = reports
        self.answers: list[Applied | None] = [REFERRED] * len(reports)
        self.open = list(range(len(reports)))
        self._refer(failed)
        self._calls: dict[int, ReportedCall] = {}
        self._signers: dict[int, Signer] = {}
        self._works: dict[str, GroupWork] = {}
        self._fallbacks: set[int] = set()
        self._recorded: set[tuple[int, str]] = set()
        self._reviewed: dict[int, ReviewedReport] = {}
        self._new: set[int] = set()

    def verify(self) -> None:
        """Verify the reports whose account was not known when they arrived. Locks nothing."""
        unknown = [at for at in self.open if self.reports[at].signer is None]
        if not unknown:
            return
        signers = report_signers.read_signers({self.reports[at].call_id for at in unknown})
        refused = {at for at in unknown if not self._is_from(signers.get(self.reports[at].call_id), at)}
        self.open = [at for at in self.open if at not in refused]

    def find_fallbacks(self) -> None:
        """Find completed calls of which Redis knows that their prompt failed, before anything is locked."""
        completed = {self.reports[at].call_id for at in self.open if self.reports[at].event.status == "completed"}
        self._fallbacks = unheard_calls.find_fallbacks(sorted(completed))

    def read(self) -> None:
        """Lock the calls, and what their purposes lock before them."""
        ids = {self.reports[at].call_id for at in self.open}
        events_here = [(self.reports[at].call_id, self.reports[at].event) for at in self.open]
        ending = sorted({pk for pk, event in events_here if event.kind == STATUS and event.status in rules.ENDS})
        keys = [(pk, event) for pk, event in events_here if event.kind == GATHER]
        self._works = group_handlers.begin_all(sorted({*ending, *(pk for pk, _ in keys)}))
        locked = prepared.fetch_later(report_sql.LOCK_CALLS, {"ids": prepared.integers(sorted(ids))})
        given = {"ids": prepared.integers(ending), "fallback": unheard_calls.FALLBACK}
        documents = prepared.fetch_later(report_sql.DOCUMENTS, given) if ending else list
        if keys:
            self._recorded = _find_recorded(keys)
        for row in locked():
            self._calls[row[0]] = ReportedCall(*(*row[:17], json.loads(row[17])))
            self._signers[row[0]] = Signer(*row[18:])
        kinds: defaultdict[int, set[str]] = defaultdict(set)
        for call_id, kind in documents():
            kinds[call_id].add(kind)
        pressed = {pk for pk, event in keys if event.digits}
        for pk, event in events_here:  # a request for a prompt in this group counts as well
            if event.kind == VOICE:
                kinds[pk].add(VOICE)
        for pk, call in self._calls.items():
            is_fetched = kinds[pk] == {VOICE} and pk not in self._fallbacks
            call.was_heard = bool(call.keys_pressed) or pk in pressed or is_fetched

    def review(self) -> None:
        """Refer what cannot be applied here, and what follows it for the same call."""
        refused = {at for at in self.open if not self._is_about_its_call(at)}
        refused |= self._with_foreign_sid(refused)
        self._refer(refused)
        by_purpose: defaultdict[str, list[tuple[int, ReviewedReport]]] = defaultdict(list)
        statuses: dict[int, str] = {}
        for at in self.open:
            report = self.reports[at]
            call = self._calls[report.call_id]
            current = statuses.get(call.pk, call.status)
            status = report.event.status
            after = status if status and rules.is_forward(current, status) else current
            statuses[call.pk] = after
            key = report.event.digits if report.event.digits in set(report.accepted_keys) else ""
            reviewed = ReviewedReport(call, report.event, after, report.arrived_at, key)
            self._reviewed[at] = reviewed
            by_purpose[call.purpose].append((at, reviewed))
        refused = {at for at in self.open if self._is_untimely(at)}
        for purpose, entries in by_purpose.items():
            work = self._works.get(purpose)
            accepted = work.review([reviewed for _, reviewed in entries]) if work else [False] * len(entries)
            refused |= {at for (at, _), is_accepted in zip(entries, accepted, strict=True) if not is_accepted}
        self._refer(refused)

    def write(self) -> None:
        """Record the reports, and change the calls and their subjects."""
        if not self.open:
            return
        now = clock.now()
        new = self._record()
        before = {pk: replace(call) for pk, call in self._calls.items()}
        touched: dict[int, ReportedCall] = {}
        event_rows: list[EventRow] = []
        pressed: defaultdict[str, list[ReviewedReport]] = defaultdict(list)
        for at in self.open:
            report = self.reports[at]
            call = touched[report.call_id] = self._calls[report.call_id]
            if (report.call_id, report.event.key) in new:
                new.discard((report.call_id, report.event.key))
                event_rows += reported_calls.apply_event(call, report.event)
                self._new.add(at)
                if self._reviewed[at].key:
                    pressed[call.purpose].append(self._reviewed[at])
        changed = [call for pk, call in touched.items() if call != before[pk]]
        reported_calls.update(changed, now)
        events.append_many(event_rows, actor=PROVIDER)
        ended = [call for call in changed if call.has_ended and not before[call.pk].has_ended]
        line_leases.release_lines(*(call.holder for call in ended))
        for purpose in {call.purpose for call in touched.values()}:
            if pressed[purpose]:
                self._works[purpose].apply_keys(pressed[purpose])
            self._works[purpose].apply([call for call in touched.values() if call.purpose == purpose])

    def apply_singly(self) -> None:
        """Apply the reports of purposes whose services change single rows."""
        for at in self.open:
            reviewed = self._reviewed[at]
            if not (work := self._works[reviewed.call.purpose]).applies_singly:
                continue
            try:
                work.apply_report(reviewed, at in self._new)
            except Exception as error:
                if is_database_away(error):
                    raise
                raise _ReportFailed(at, error) from error

    def build_answers(self) -> None:
        """Build the responses to the applied reports."""
        for at in self.open:
            self.answers[at] = self._answer(at)

    def _record(self) -> set[tuple[int, str]]:
        """Write the reports, and return (call, key) of those that were not repetitions."""
        reports = [self.reports[at] for at in self.open]
        given = {
            "organizations": prepared.integers(self._calls[report.call_id].organization_id for report in reports),
            "calls": prepared.integers(report.call_id for report in reports),
            "keys": prepared.texts(report.event.key for report in reports),
            "kinds": prepared.texts(report.event.kind for report in reports),
            "payloads": prepared.texts(json.dumps(report.event.payload) for report in reports),
            "moments": prepared.timestamps(report.arrived_at for report in reports),
        }
        return {(call_id, key) for call_id, key in prepared.fetch_all(report_sql.RECORD, given)}

    def _answer(self, at: int) -> Applied:
        report = self.reports[at]
        reviewed = self._reviewed[at]
        if not reviewed.asks_for_document:
            return Applied()
        call = reviewed.call
        prompt = self._works[call.purpose].document(reviewed)
        reader = report.signed.reader
        if isinstance(prompt, Redirect):
            body, content_type = reader.render_hand_over(prompt.url)
        else:
            assert isinstance(prompt, VoicePrompt)
            url = webhook_urls.webhook_of(report.provider, call.pk, GATHER, report.step + 1, prompt.keys)
            body, content_type = reader.render(prompt, url)
        return Applied(content_type, body)

    def _refer(self, refused: Collection[int]) -> None:
        if not refused:
            return
        calls = set()
        remaining = []
        for at in self.open:
            if at in refused or self.reports[at].call_id in calls:
                calls.add(self.reports[at].call_id)
            else:
                remaining.append(at)
        self.open = remaining

    def _is_from(self, signer: Signer | None, at: int) -> bool:
        report = self.reports[at]
        return signer is not None and report_signers.has_signed(
            signer, report.provider, report.event, report.signed
        )

    def _is_about_its_call(self, at: int) -> bool:
        """Return whether the report is its account's and about this call, which is locked, and is a plain one.

        A report that establishes the call is not plain if the call was given up or is to be ended, and neither is
        an error, whose code is examined.
        """
        report = self.reports[at]
        event = report.event
        call = self._calls.get(report.call_id)
        if call is None or event.error_code or event.status == "failed" or not event.sid:
            return False
        signer = self._signers[call.pk]
        if signer != report.signer and not self._is_from(signer, at):
            return False
        if call.sid is None:
            return not (call.is_canceled or call.has_ended)
        return call.sid == event.sid

    def _is_untimely(self, at: int) -> bool:
        """Return whether it is a key, or none, that is repeated, or that is pressed when its call is over."""
        report, reviewed = self.reports[at], self._reviewed[at]
        if report.event.kind != GATHER:
            return False
        is_known = (report.call_id, report.event.key) in self._recorded
        return is_known or reviewed.status in rules.ENDS or reviewed.call.has_ended or reviewed.call.is_canceled

    def _with_foreign_sid(self, refused: Collection[int]) -> set[int]:
        """Adopt the SIDs of calls that have none. Return the reports whose SID belongs to another call."""
        adopting: dict[tuple[int, str], int] = {}
        foreign = set()
        for at in self.open:
            report = self.reports[at]
            if at in refused or (call := self._calls[report.call_id]).sid == report.event.sid:
                continue
            if adopting.setdefault((call.account_id, report.event.sid), call.pk) != call.pk:
                foreign.add(at)
        if not adopting:
            return foreign
        pairs = {
            "accounts": prepared.integers(account_id for account_id, _ in adopting),
            "sids": prepared.texts(sid for _, sid in adopting),
        }
        known = {(account_id, sid) for account_id, sid in prepared.fetch_all(report_sql.KNOWN_SIDS, pairs)}
        adopted: dict[int, str] = {}
        for at in self.open:
            report = self.reports[at]
            if at in refused or at in foreign or (call := self._calls[report.call_id]).sid == report.event.sid:
                continue
            sid = report.event.sid
            if (call.account_id, sid) in known or adopted.setdefault(call.pk, sid) != sid:
                foreign.add(at)
        return foreign


def _find_recorded(keys: Sequence[tuple[int, WebhookEvent]]) -> set[tuple[int, str]]:
    given = {
        "calls": prepared.integers(pk for pk, _ in keys),
        "keys": prepared.texts(event.key for _, event in keys),
    }
    return {(pk, key) for pk, key in prepared.fetch_all(report_sql.RECORDED, given)}
