"""Apply the provider's reports on calls of leads in groups: the ends of calls, and requests for their prompts."""

from __future__ import annotations

from collections.abc import Sequence

from dispatch.core.db import fast_rows
from dispatch.core.db.prepared import fetch_later, integers
from dispatch.leads import sql, voice
from dispatch.leads.models import Campaign, Lead, VoiceAgent
from dispatch.leads.redis_queue import PURPOSE
from dispatch.leads.rules.retries import LeadFacts
from dispatch.leads.rules.states import Status
from dispatch.leads.services import completion
from dispatch.telephony import group_handlers
from dispatch.telephony import services as telephony
from dispatch.telephony.group_handlers import RecordedOnly, ReportedCall, ReviewedReport
from dispatch.telephony.handlers import Document
from dispatch.telephony.rules import ENDS


class LeadReports:
    """The leads' part of a group. `ending`: the ids of calls, of any purpose, that reports may end.

    It refuses the end of a call with keys, which may not be applied yet, and of a call whose lead another session
    has locked; and requests for the prompt of a campaign with a voice agent.
    """

    def __init__(self, ending: Sequence[int]) -> None:
        self._locked = fetch_later(sql.LOCK_OF_CALLS, {"ids": integers(ending)}) if ending else None
        self._facts: dict[int, LeadFacts] = {}
        self._leads: dict[int, Lead] = {}
        self._keys: dict[int, str] = {}

    def review(self, reports: Sequence[ReviewedReport]) -> list[bool]:
        """Return for each report whether it can be applied in this group."""
        rows = {row[0]: row for row in self._locked()} if self._locked else {}
        self._facts = {lead_id: sql.facts_of(row) for lead_id, row in rows.items() if row[-1] == Status.PROCESSING}
        self._load_leads({report.call.subject_id for report in reports if report.event.kind == "voice"})
        return [
            self._can_prompt(report)
            if report.event.kind == "voice"
            else report.status not in ENDS or self._can_end(report.call, rows)
            for report in reports
        ]

    def apply(self, calls: Sequence[ReportedCall]) -> None:
        """Finish the attempts of the calls that have ended."""
        if ended := [call for call in calls if call.has_ended]:
            completion.finish_reported(ended, self._facts)

    def document(self, call: ReportedCall) -> Document:
        """Return the campaign's document for this lead."""
        lead = self._leads[call.subject_id]
        return voice.plain_document(lead, call.pk, call.answered_by, self._keys[lead.campaign_id])

    @staticmethod
    def _can_end(call: ReportedCall, rows: dict[int, tuple[object, ...]]) -> bool:
        return call.subject_id in rows and not call.keys_pressed and not call.error_code

    def _can_prompt(self, report: ReviewedReport) -> bool:
        return report.call.subject_id in self._leads and report.status not in ENDS and not report.call.is_canceled

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
        self._keys = {pk: voice.keys_of(campaign) for pk, campaign in plain.items()}
        for lead in leads:
            if lead.campaign_id in plain:
                lead.campaign = plain[lead.campaign_id]
                self._leads[lead.pk] = lead


def register() -> None:
    """Register the group handlers of the lead purposes with telephony."""
    group_handlers.register_groups(PURPOSE, LeadReports)
    group_handlers.register_groups(telephony.CONNECT, RecordedOnly)
