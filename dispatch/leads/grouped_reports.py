"""Apply the provider's reports on calls of leads in groups: ends of calls, requests for prompts, pressed keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dispatch.core import events
from dispatch.core.db import fast_rows
from dispatch.core.db.prepared import fetch_later, integers, texts, timestamps
from dispatch.leads import sql, voice
from dispatch.leads.models import Campaign, KeyBranch, Lead, VoiceAgent
from dispatch.leads.redis_queue import PURPOSE
from dispatch.leads.rules.retries import LeadFacts
from dispatch.leads.rules.script import Action
from dispatch.leads.rules.states import Status
from dispatch.leads.services import branches, completion
from dispatch.telephony import group_handlers
from dispatch.telephony import services as telephony
from dispatch.telephony.group_handlers import RecordedOnly, ReportedCall, ReviewedReport
from dispatch.telephony.handlers import Document
from dispatch.telephony.rules import ENDS

# Keys that need no lock but the lead's, no other call and no text.
_PLAIN = (Action.SAY, Action.PLAY, Action.LATER)


class LeadReports:
    """The leads' part of a group. `changing`: the ids of calls, of any purpose, that may change their leads.

    It refuses the end of a call with keys that are not applied yet, and of a call whose lead another session has
    locked; requests for documents in a campaign with a voice agent; and keys that opt out, connect, send a text or
    record an outcome that one follows.
    """

    applies_singly = False

    def __init__(self, changing: Sequence[int]) -> None:
        self._locked = fetch_later(sql.LOCK_OF_CALLS, {"ids": integers(changing)}) if changing else None
        self._rows: set[int] = set()
        self._facts: dict[int, LeadFacts] = {}
        self._leads: dict[int, Lead] = {}
        self._branches: dict[int, dict[str, KeyBranch]] = {}

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Return for each report whether it can be applied in this group."""
        rows = {row[0]: row for row in self._locked()} if self._locked else {}
        self._rows = set(rows)
        self._facts = {lead_id: sql.facts_of(row) for lead_id, row in rows.items() if row[-1] == Status.PROCESSING}
        self._load_leads({report.call.subject_id for report in reports if report.asks_for_document})
        ended = [report.call for report in reports if report.status in ENDS and not report.asks_for_document]
        pressed = {call.subject_id for call in ended if call.keys_pressed}
        waiting = telephony.find_waiting(PURPOSE, pressed) if pressed else set()
        with_texts = self._find_follow_ups(reports)
        return [self._can_apply(report, waiting, with_texts) for report in reports]

    def apply_keys(self, pressed: Sequence[ReviewedReport]) -> None:
        """Record the outcomes that the keys' branches have, as `branches.apply_branch` does for one."""
        changed: set[int] = set()
        for report in pressed:
            branch = self._branch_of(report)
            if branch is None or not (changes := branches.outcome_of(branch)):
                continue
            lead = self._leads[report.call.subject_id]
            facts = self._facts[lead.pk]
            if facts.call_back_at is not None:
                changes.pop("call_back_at", None)
            changes = {name: value for name, value in changes.items() if getattr(facts, name) != value}
            if changes:
                self._facts[lead.pk] = facts._replace(**changes)
                changed.add(lead.pk)
                event = branches.outcome_event(lead, report.call, changes)
                events.append_many([event], actor=branches.caller_of(lead.pk))
        if changed:
            self._write_outcomes([self._facts[lead_id] for lead_id in sorted(changed)])

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Finish the attempts of the calls that have ended."""
        if ended := [call for call in calls if call.has_ended]:
            completion.finish_reported(ended, self._facts)

    def apply_report(self, report: ReviewedReport, is_new: bool) -> None:
        """Do nothing: leads are changed by the group's statements."""

    def document(self, report: ReviewedReport) -> Document:
        """Return the campaign's document for this lead, or what the key's branch says."""
        call, lead = report.call, self._leads[report.call.subject_id]
        if (branch := self._branch_of(report)) is not None:
            return voice.key_document(lead, branch)
        keys = voice.offered_keys(lead.campaign, self._branches[lead.campaign_id])
        return voice.plain_document(lead, call.pk, call.answered_by, keys)

    def _can_apply(self, report: ReviewedReport, waiting: set[int], with_texts: set[int]) -> bool:
        call = report.call
        if not report.asks_for_document:
            is_locked = call.subject_id in self._rows and call.subject_id not in waiting
            return report.status not in ENDS or (is_locked and not call.error_code)
        if call.subject_id not in self._leads or report.status in ENDS or call.is_canceled:
            return False
        if report.key and report.key == self._leads[call.subject_id].campaign.opt_out_key:
            return False
        branch = self._branch_of(report)
        if branch is None or (branch.action in _PLAIN and not branches.outcome_of(branch)):
            return True
        facts = self._facts.get(call.subject_id)
        is_in_call = facts is not None and facts.token == call.attempt
        return branch.action in _PLAIN and is_in_call and call.subject_id not in with_texts

    def _branch_of(self, report: ReviewedReport) -> KeyBranch | None:
        lead = self._leads.get(report.call.subject_id)
        return None if lead is None or not report.key else self._branches[lead.campaign_id].get(report.key)

    def _find_follow_ups(self, reports: Sequence[ReviewedReport]) -> set[int]:
        """Return the leads for whose outcome a text is sent or canceled."""
        found = [(report.call.subject_id, self._branch_of(report)) for report in reports]
        recorded = [(lead_id, branch) for lead_id, branch in found if branch is not None and branch.disposition]
        if not recorded:
            return set()
        params: dict[str, Any] = {
            "ids": integers(lead_id for lead_id, _ in recorded),
            "campaigns": integers(self._leads[lead_id].campaign_id for lead_id, _ in recorded),
            "dispositions": texts(branch.disposition for _, branch in recorded),
        }
        return {lead_id for (lead_id,) in sql.fetch_all(sql.WITH_FOLLOW_UPS, params)}

    @staticmethod
    def _write_outcomes(leads: Sequence[LeadFacts]) -> None:
        params = {
            "ids": integers(lead.id for lead in leads),
            "dispositions": texts(lead.disposition for lead in leads),
            "call_backs": timestamps(lead.call_back_at for lead in leads),
        }
        sql.execute(sql.RECORD_OUTCOMES, params)

    def _load_leads(self, lead_ids: set[int]) -> None:
        """Load the leads whose campaigns have no voice agent, with what their prompts need."""
        if not lead_ids:
            return
        leads = fast_rows.fetch_many(Lead, "t.id = ANY(%s::bigint[])", [integers(lead_ids)])
        given = [integers({lead.campaign_id for lead in leads})]
        campaigns = fast_rows.fetch_many(Campaign, "t.id = ANY(%s::bigint[])", given, *voice.SPOKEN_WITH)
        agents = fast_rows.fetch_many(VoiceAgent, "t.campaign_id = ANY(%s::bigint[])", given)
        with_agent = {agent.campaign_id for agent in agents}
        plain = {campaign.pk: campaign for campaign in campaigns if campaign.pk not in with_agent}
        self._branches = branches.load_branches_of(plain.values())
        for lead in leads:
            if lead.campaign_id in plain:
                lead.campaign = plain[lead.campaign_id]
                self._leads[lead.pk] = lead


def register() -> None:
    """Register the group handlers of the lead purposes with telephony."""
    group_handlers.register_groups(PURPOSE, LeadReports)
    group_handlers.register_groups(telephony.CONNECT, RecordedOnly)
