"""Leads in the admin: switches, why a phone was not called, and what only superusers maintain."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.models import Event
from dispatch.leads.models import CallingRule, Campaign, DoNotCall, EngineSwitch, LeadDispatch
from dispatch.telephony.models import Call
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    pool = make.pool(organization)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring", script="Hello."
    )


def url(name: str, *args: object) -> str:
    return reverse(f"admin:leads_{name}", args=args)


def test_a_phone_is_searched_and_its_page_says_why_it_was_not_called(campaign):
    lead = campaign.leads.create(
        organization=campaign.organization, phone="+16025550134", reason="campaign_paused"
    )
    client = browser(make.dispatcher(campaign.organization))
    assert "+16025550134" in client.get(url("lead_changelist") + "?q=%2B16025550134").content.decode()
    page = client.get(url("lead_change", lead.pk)).content.decode()
    assert "Its campaign is paused." in page
    for reason in ("called", ""):
        campaign.leads.create(organization=campaign.organization, phone="+16025550135", reason=reason)
    counted = client.get(url("lead_changelist") + "?_facets=True&reason=called").content.decode()
    assert [word in counted for word in ("Its campaign is paused (1)", "Called (1)")] == [True, True]


def test_pages_of_a_lead_with_very_many_calls_show_the_last_ones(campaign):
    lead = campaign.leads.create(organization=campaign.organization, phone="+16025550134")
    number = make.number(campaign.organization)
    Call.objects.bulk_create(
        Call(
            organization=campaign.organization, purpose="lead", subject_id=lead.pk, attempt=attempt,
            account=number.account, number=number, pool=number.pool, line_slot=0, pool_slot=0,
            to_phone="+16025550134", from_phone=number.phone, status="busy", place_by=clock.now(),
            ended_at=clock.now(), keys_pressed=str(attempt),
        )
        for attempt in range(1, MAX_LATEST + 6)
    )  # fmt: skip
    client = browser(make.dispatcher(campaign.organization))
    page = client.get(url("lead_change", lead.pk)).content.decode()
    shown = [int(attempt) for attempt in re.findall(r"<li value='(\d+)'>", page)]
    assert shown == list(range(6, MAX_LATEST + 6))
    assert "Only the last 100 entries are shown." in page
    page = client.get(reverse("console:leads_phone") + "?q=%2B16025550134").content.decode()
    assert [int(keys) for keys in re.findall(r"pressed (\d+)", page)] == shown
    assert "Only the last 100 entries are shown." in page


def test_campaigns_are_paused_and_resumed_from_the_list(campaign):
    client = browser(make.dispatcher(campaign.organization))
    for action, paused in (("pause", True), ("resume", False)):
        client.post(
            url("campaign_changelist"), {"action": action, "confirmed": "1", "_selected_action": [campaign.pk]}
        )
        campaign.refresh_from_db()
        assert campaign.is_paused is paused
    assert Event.objects.filter(kind__in=["campaign.paused", "campaign.resumed"]).count() == 2


def test_an_admin_goes_live_and_a_dispatcher_cannot(campaign):
    organization = campaign.organization
    body = {"mode": "live", "organization": organization.pk}
    browser(make.dispatcher(organization)).post(url("leaddispatch_add"), body)
    assert not LeadDispatch.objects.exists()
    campaign.leads.create(organization=organization, phone="+16025550134")
    make.number(organization, pool=campaign.pool)
    asked = browser(make.admin(organization)).post(url("leaddispatch_add"), body)
    assert asked.status_code == 200
    assert "1 person will be called now. Hours: 08:00–21:00, every day." in asked.content.decode()
    assert not LeadDispatch.objects.exists()
    answer = browser(make.admin(organization)).post(url("leaddispatch_add"), {**body, "confirmed": "on"})
    assert answer.status_code == 302
    assert LeadDispatch.objects.get().mode == "live"
    assert Event.objects.filter(kind="lead_dispatch.switched").exists()


def test_a_dispatcher_enters_who_must_not_be_called(campaign):
    client = browser(make.dispatcher(campaign.organization))
    client.post(
        url("donotcall_add"), {"phone": "+16025550134", "note": "Asked", "organization": campaign.organization.pk}
    )
    assert DoNotCall.objects.get().source == "person"


@pytest.mark.parametrize("model", ["callingrule", "holiday", "donotcalleverywhere", "engineswitch"])
def test_global_settings_are_managed_by_superusers(campaign, model):
    for who in (make.admin(campaign.organization), make.dispatcher(campaign.organization)):
        assert browser(who).get(url(f"{model}_changelist")).status_code == 403
        assert browser(who).get(url(f"{model}_add")).status_code == 403
    root = browser(make.user("Root", is_superuser=True))
    assert root.get(url(f"{model}_changelist")).status_code == 200
    assert root.get(url(f"{model}_add")).status_code == 200


def test_the_kill_switch_is_one_row_with_a_log(campaign):
    LeadDispatch.objects.create(organization=campaign.organization)
    root = browser(make.user("Root", is_superuser=True))
    root.post(url("engineswitch_add"), {"is_stopped": "on"})
    assert EngineSwitch.objects.get().is_stopped
    assert root.get(url("engineswitch_add")).status_code == 403
    assert Event.objects.filter(kind="lead_engine.switched", organization_id=campaign.organization_id).exists()


def test_a_states_hours_are_edited(campaign):
    rule = CallingRule.objects.filter(region="FL").first() or CallingRule.objects.create(region="FL", source="x")
    root = browser(make.user("Root", is_superuser=True))
    body = {
        "name": "Florida", "country": "US", "region": "FL", "weekdays": ["0", "1", "2"], "window_from": "09:00",
        "window_until": "19:00", "since": "2026-07-01", "source": "Fla. Stat. 501.616(6)",
    }  # fmt: skip
    assert root.post(url("callingrule_change", rule.pk), body).status_code == 302
    rule.refresh_from_db()
    assert (rule.weekdays, rule.since.isoformat()) == ([0, 1, 2], "2026-07-01")
    page = root.get(url("callingrule_change", rule.pk)).content.decode()
    assert [day in page for day in ("Monday", "Sunday")] == [True, True]
    assert root.post(url("callingrule_change", rule.pk), {**body, "weekdays": ["7"]}).status_code == 200
    rule.refresh_from_db()
    assert rule.weekdays == [0, 1, 2]
