"""The pages and the API explain why a lead waits or ended with what is true of it."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.services import switches
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db

PHONE = "+16025550134"


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    LeadDispatch.objects.create(organization=organization, mode="live")
    pool = make.pool(organization, name="Spring")
    make.number(organization, pool=pool)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring sale", script="Hello."
    )


@pytest.fixture
def due(campaign: Campaign) -> Lead:
    return campaign.leads.create(
        organization=campaign.organization, phone=PHONE, due_at=clock.now() - timedelta(minutes=5)
    )


@pytest.fixture
def page(campaign: Campaign) -> Client:
    return browser(make.dispatcher(campaign.organization))


def text(page: Client, name: str, *args: object) -> str:
    return " ".join(page.get(reverse(name, args=args)).content.decode().split())


SWITCHES = {
    "is_stopped": "Calling is stopped for all organizations",
    "promoter_paused": "Calls to due leads are paused for all organizations",
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_due_leads_name_the_switch_of_all_organizations(campaign: Campaign, due: Lead, page: Client, switch: str):
    switches.set_engine(**{switch: True}, actor=SYSTEM)
    assert explain_lead(due) == f"{SWITCHES[switch]}."
    for shown in (text(page, "console:leads"), text(page, "console:campaign", campaign.pk)):
        assert f"{SWITCHES[switch]}. No calls are being made." in shown
        assert "Waiting for a line" not in shown
        assert "called when due" not in shown
    switches.set_engine(**{switch: False}, actor=SYSTEM)
    assert "waiting for a free line of pool Spring" in explain_lead(due)
    assert "Waiting for a line" in text(page, "console:leads")
    assert "Leads are called when due, from Spring." in text(page, "console:campaign", campaign.pk)


def test_campaign_page_names_the_pause_of_the_organization(campaign: Campaign, due: Lead, page: Client) -> None:
    switches.set_dispatch(campaign.organization_id, is_paused=True, actor=SYSTEM)
    shown = text(page, "console:campaign", campaign.pk)
    assert "Lead calling is paused for this organization. No calls are being made." in shown


def test_due_leads_name_the_outage_of_their_numbers(campaign: Campaign, due: Lead) -> None:
    account = OutboundNumber.objects.get().account
    account.outage, account.outage_reason, account.outage_since = "refused", "Authenticate", clock.now()
    account.save()
    outage = "waiting for the end of an outage. The phone provider refused our account: Authenticate."
    assert explain_lead(due).endswith(outage)
    make.number(campaign.organization, pool=campaign.pool, account=make.account(campaign.organization))
    assert explain_lead(due).endswith("waiting for a free line of pool Spring."), "another account works"
