"""What a person held back goes on when it is lifted, however the lifting went: a loop compares what leads wait for
with the switches as they are."""

from __future__ import annotations

from collections.abc import Iterator

from dispatch.leads import gating, sql
from dispatch.leads.models import Campaign
from dispatch.leads.rules.facts import CampaignRules
from dispatch.leads.rules.words import HELD, Mode, Reason
from dispatch.leads.services.releasing import release

CAMPAIGNS_AT_ONCE = 1000


def release_lifted() -> int:
    """Releases every lead that waits for a switch which holds it no more; how many."""
    return sum(release(reasons, campaign_id=campaign_id) for campaign_id, reasons in _lifted())


def holding(rules: CampaignRules, stopped: bool) -> set[Reason]:
    """Which switches hold the campaign's leads now."""
    return {
        reason
        for reason, holds in (
            (Reason.STOPPED, stopped),
            (Reason.ORGANIZATION_OFF, rules.mode == Mode.OFF),
            (Reason.ORGANIZATION_PAUSED, rules.organization_paused),
            (Reason.CAMPAIGN_PAUSED, rules.is_paused),
        )
        if holds
    }


def _lifted() -> Iterator[tuple[int, list[Reason]]]:
    """Campaigns with leads that wait for what holds them no more, and for what they wait."""
    ids = list(Campaign.objects.order_by("pk").values_list("pk", flat=True))
    for start in range(0, len(ids), CAMPAIGNS_AT_ONCE):
        stopped, campaigns = gating.switches(ids[start : start + CAMPAIGNS_AT_ONCE])
        lifted = {pk: [r for r in HELD if r not in holding(rules, stopped)] for pk, rules in campaigns.items()}
        pairs = [(pk, reason) for pk, reasons in lifted.items() for reason in reasons]
        given = {"campaigns": [pk for pk, _ in pairs], "reasons": [str(reason) for _, reason in pairs]}
        found: dict[int, list[Reason]] = {}
        for campaign_id, reason in sql.rows(sql.WAITING_FOR, given):
            found.setdefault(campaign_id, []).append(Reason(reason))
        yield from found.items()
