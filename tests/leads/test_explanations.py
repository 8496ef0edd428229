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
from dispatch.leads.models import Campaign, DoNotCallEverywhere, Lead, LeadDispatch
from dispatch.leads.services import switches
from dispatch.telephony.services import sms
from tests.harness.leads import Floor
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


ENDS = {
    ("not_placed", "country_not_allowed"): "Not called: calls to its country aren't allowed.",
    ("not_placed", "most_attempts"): "The phone provider never accepted the call.",
    ("attempts_exhausted", "most_attempts"): "The phone provider never accepted the call.",
    ("precheck_failed", "precheck_no"): "The pre-check reported that the call is no longer wanted.",
    ("precheck_failed", "precheck_no_answer"): "Not called: the pre-check didn't respond.",
    ("precheck_failed", "precheck_later"): "Not called: the pre-check asked Dispatch to wait for too long.",
    ("failed", "error"): "Not called: every try failed because of an error.",
    ("failed", "called"): "The call failed.",
    ("do_not_call", "do_not_call"): "On the do-not-call list.",
    ("outside_window", "never_permitted"): "Not called: outside the permitted hours for too long.",
    ("outside_window", "attempts_24h"): (
        "Not called: the maximum number of calls in 24 hours allowed none for too long."
    ),
    ("outside_window", "customer_rate"): "Not called: the customer's rate limit allowed no call for too long.",
}


@pytest.mark.parametrize(("outcome", "reason"), ENDS)
def test_an_ended_lead_names_what_ended_it(campaign: Campaign, outcome: str, reason: str) -> None:
    ended = campaign.leads.create(
        organization=campaign.organization, phone=PHONE, status="finished", outcome=outcome, reason=reason,
        finished_at=clock.now(),
    )  # fmt: skip
    assert explain_lead(ended) == ENDS[outcome, reason]


def test_a_lead_that_was_called_in_vain_was_not_refused(campaign: Campaign) -> None:
    ended = campaign.leads.create(
        organization=campaign.organization, phone=PHONE, status="finished", outcome="attempts_exhausted",
        reason="most_attempts", attempts=3, finished_at=clock.now(),
    )  # fmt: skip
    assert explain_lead(ended) == "Not reached in any attempt."


@pytest.mark.django_db(transaction=True)
def test_a_phone_that_replied_stop_is_found_to_have_opted_out(floor: Floor) -> None:
    sms.opt_out(floor.organization.pk, PHONE, source="stop")
    (lead,) = floor.add(PHONE)
    assert floor.work() == 0
    row = floor.lead(lead)
    assert (row.outcome, row.reason) == ("do_not_call", "opted_out")
    assert explain_lead(row) == "Not called: the number opted out of texts."
    shown = look_up(browser(make.dispatcher(floor.organization)))
    assert "Opted out of texts since" in shown
    assert "(Sent STOP). No campaign calls this number." in shown


def test_a_phone_on_the_list_of_all_organizations_is_found_there(page: Client) -> None:
    assert "On the do-not-call list" not in look_up(page)
    DoNotCallEverywhere.objects.create(phone=PHONE)
    assert "On the do-not-call list of all organizations since" in look_up(page)


def look_up(page: Client) -> str:
    return " ".join(page.get(reverse("console:leads_phone"), {"q": PHONE}).content.decode().split())
