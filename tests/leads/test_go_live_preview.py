"""The preview of going live counts only the calls that would be made."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, languages
from dispatch.core.events import SYSTEM
from dispatch.leads.go_live_preview import preview
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.services import switches
from tests.support import factories as make

pytestmark = pytest.mark.django_db

NO_NUMBER = "No caller number is available. Nobody is called until you add or resume one."
OUTAGE = "The phone provider has an outage. Nobody is called until it ends."


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    pool = make.pool(organization)
    make.number(organization, pool=pool, max_channels=7)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring sale", script="Hello."
    )


def lead(campaign: Campaign, **fields: object) -> Lead:
    return campaign.leads.create(organization=campaign.organization, **{"phone": make.phone(), **fields})


def add_campaign(campaign: Campaign, **pool: object) -> Campaign:
    organization = campaign.organization
    return Campaign.objects.create(
        organization=organization, pool=make.pool(organization, **pool), code="x", name="Xmas", script="Hello."
    )


def obstacles(campaign: Campaign) -> dict[str, str]:
    return {row.campaign.name: row.obstacle for row in preview(campaign.organization_id).campaigns}


@pytest.mark.parametrize("is_paused", [True, False])
def test_campaigns_of_a_pool_without_usable_numbers_call_nobody(campaign: Campaign, is_paused: bool) -> None:
    other = add_campaign(campaign, is_paused=is_paused)
    make.number(campaign.organization, pool=other.pool, is_paused=not is_paused)
    lead(campaign)
    lead(other)
    found = preview(campaign.organization_id)
    assert (found.people, found.due, found.lines, found.obstacle) == (1, 1, 7, "")
    assert obstacles(campaign) == {"Spring sale": "", "Xmas": NO_NUMBER}
    campaign.pool.numbers.update(is_paused=True)
    found = preview(campaign.organization_id)
    assert (found.people, found.lines, found.summary) == (0, 0, NO_NUMBER)


def test_lines_are_at_most_the_limit_of_their_pool(campaign: Campaign) -> None:
    other = add_campaign(campaign, concurrency=2)
    make.number(campaign.organization, pool=other.pool, max_channels=5)
    lead(campaign)
    lead(other)
    assert preview(campaign.organization_id).lines == 7 + 2


def test_lines_reserved_for_jobs_do_not_call_leads(campaign: Campaign) -> None:
    lead(campaign)
    OutboundNumber.objects.update(reserved_for_alerts=1, reserved_for_offers=2)
    assert preview(campaign.organization_id).lines == 4
    OutboundNumber.objects.update(reserved_for_offers=6)
    assert preview(campaign.organization_id).obstacle == NO_NUMBER


def test_an_outage_of_the_provider_calls_nobody(campaign: Campaign) -> None:
    lead(campaign)
    account = OutboundNumber.objects.get().account
    account.outage, account.outage_since = "no_answer", clock.now()
    account.save()
    found = preview(campaign.organization_id)
    assert (found.people, found.lines, found.obstacle) == (0, 0, OUTAGE)


def test_a_paused_promoter_calls_nobody(campaign: Campaign) -> None:
    lead(campaign)
    switches.set_engine(promoter_paused=True, actor=SYSTEM)
    assert preview(campaign.organization_id).summary.startswith("Calls to due leads are paused")


def test_campaigns_with_different_obstacles_are_not_empty(campaign: Campaign) -> None:
    lead(campaign)
    lead(add_campaign(campaign))
    Campaign.objects.filter(pk=campaign.pk).update(is_paused=True)
    assert preview(campaign.organization_id).summary == "No campaign that has leads can make calls."


def test_the_summary_is_in_the_readers_language(campaign: Campaign) -> None:
    lead(campaign)
    assert summary(campaign) == "1 person will be called now. Hours: 08:00–21:00, every day."
    assert summary(campaign, "es") == "Se llamará a 1 persona ahora. Horario: 08:00–21:00, todos los días."
    later = clock.now() + timedelta(hours=2)
    lead(campaign, due_at=later, wanted_at=later)
    assert summary(campaign).startswith("2 people will be called: 1 now, 1 later. Hours: ")
    assert summary(campaign, "es").startswith("Se llamará a 2 personas: 1 ahora, 1 más tarde. Horario: ")
    Lead.objects.all().delete()
    assert summary(campaign, "es").startswith("Nadie espera una llamada.")


def summary(campaign: Campaign, language: str = "en") -> str:
    with languages.override(language):
        return preview(campaign.organization_id).summary
