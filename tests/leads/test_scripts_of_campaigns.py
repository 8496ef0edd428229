"""A campaign with nothing to say calls nobody."""

from __future__ import annotations

from typing import Any

import pytest
from django.urls import reverse

from dispatch.core.events import SYSTEM
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import Campaign, LeadDispatch
from dispatch.leads.services import switches
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.harness.leads import Floor
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "+16025550101"
WORDS = "Write a script or enter a TwiML URL"


@pytest.fixture
def api(floor) -> Api:
    return Api(key=make.api_key(floor.organization, "leads:write", "read", "manage"))


def form(floor: Floor, **fields: Any) -> dict[str, Any]:
    """What a browser sends for a campaign in the admin."""
    sent = {
        "organization": floor.organization.pk, "name": "Fall", "code": "fall", "pool": floor.pool.pk,
        "window_from": "08:00", "window_until": "21:00", "weekdays": ["0", "1"], "patience_h": "168",
        "max_attempts": "3", "max_attempts_24h": "3", "opt_out_key": "9", "ring_timeout_s": "30",
        "time_limit_s": "300", "precheck_timeout_s": "2", "precheck_without_answer": "later",
    }  # fmt: skip
    rows: dict[str, str] = {}
    for prefix in ("retry_rules", "branches", "disposition_rules", "agent"):
        rows |= {f"{prefix}-{name}": "0" for name in ("TOTAL_FORMS", "INITIAL_FORMS", "MIN_NUM_FORMS")}
        rows[f"{prefix}-MAX_NUM_FORMS"] = "1000"
    return {**sent, **rows, **fields}


@pytest.mark.parametrize("script", ["", "   ", " \n\t "])
def test_a_campaign_without_words_is_not_called_and_says_why(floor: Floor, script: str) -> None:
    Campaign.objects.update(script=script)
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    assert not Call.objects.exists()
    assert floor.lead(lead).reason == "no_script"
    assert explain_lead(floor.lead(lead)) == "Its campaign has no script."


@pytest.mark.parametrize("heard", [{"script": "Hello."}, {"answer_url": "https://example.com/twiml"}])
def test_leads_are_called_once_their_campaign_has_words(floor: Floor, api: Api, heard: dict[str, str]) -> None:
    Campaign.objects.update(script="")
    (lead,) = floor.add(ANN)
    floor.work()
    floor.step(switches.LIFTED)
    assert floor.lead(lead).reason == "no_script"
    assert api.patch(f"campaigns/{floor.campaign.pk}/", heard).status_code == 200
    floor.step(switches.LIFTED)
    assert floor.work() == 1


def test_an_active_campaign_keeps_its_words_in_the_api(floor: Floor, api: Api) -> None:
    path = f"campaigns/{floor.campaign.pk}/"
    new = {"code": "fall", "name": "Fall", "pool": floor.pool.code}
    for answer in (api.post("campaigns/", new), api.patch(path, {"script": " "})):
        assert answer.status_code == 400
        assert answer.json()["errors"][0]["field"] == "script"
        assert WORDS in answer.json()["errors"][0]["detail"]
    assert api.post("campaigns/", {**new, "script": "Hello."}).status_code == 201
    assert api.patch(path, {"script": "", "answer_url": "https://example.com/twiml"}).status_code == 200


def test_a_paused_campaign_may_lack_words_and_is_not_resumed(floor: Floor, api: Api) -> None:
    path = f"campaigns/{floor.campaign.pk}/"
    assert api.post(f"{path}pause/").status_code == 200
    assert api.patch(path, {"script": ""}).status_code == 200
    refused = api.post(f"{path}resume/")
    assert refused.status_code == 409
    assert "has no script" in refused.json()["detail"]
    dispatcher = browser(make.dispatcher(floor.organization))
    at = reverse("console:leads_campaign", args=[floor.campaign.pk, "resume"])
    assert "has no script" in dispatcher.post(at, follow=True).content.decode()
    chosen = {"action": "resume", "confirmed": "1", "_selected_action": [floor.campaign.pk]}
    page = dispatcher.post(reverse("admin:leads_campaign_changelist"), chosen, follow=True)
    assert "has no script" in page.content.decode()
    floor.campaign.refresh_from_db()
    assert floor.campaign.is_paused
    api.patch(path, {"script": "Hello."})
    assert api.post(f"{path}resume/").status_code == 200


def test_the_admin_form_asks_for_words(floor: Floor) -> None:
    admin = browser(make.admin(floor.organization))
    at = reverse("admin:leads_campaign_add")
    refused = admin.post(at, form(floor, script="  "))
    assert refused.status_code == 200
    assert WORDS in refused.content.decode()
    assert not Campaign.objects.filter(code="fall").exists()
    assert admin.post(at, form(floor, script="Hello.")).status_code == 302
    made = Campaign.objects.get(code="fall")
    change = reverse("admin:leads_campaign_change", args=[made.pk])
    assert WORDS in admin.post(change, form(floor, script="")).content.decode()
    switches.pause_campaign(made.pk, True, actor=SYSTEM)
    assert admin.post(change, form(floor, script="")).status_code == 302


def test_the_console_names_a_campaign_without_words(floor: Floor) -> None:
    Campaign.objects.update(script="")
    floor.add(ANN)
    floor.work()
    LeadDispatch.objects.update(mode="live")
    page = browser(make.admin(floor.organization)).get(reverse("console:leads")).content.decode()
    assert "No script" in page
    assert "Its campaign has no script" in page


def test_a_script_that_no_provider_takes_is_rejected(floor: Floor, api: Api) -> None:
    path = f"campaigns/{floor.campaign.pk}/"
    response = api.patch(path, {"script": "one sentence\n" * 2000})
    assert response.status_code == 400
    assert "too long" in response.content.decode()
    assert api.patch(path, {"script": "one sentence\n" * 1000}).status_code == 200
    page = browser(make.admin(floor.organization)).post(
        reverse("admin:leads_campaign_add"), form(floor, code="long", script="\u65e5" * 6000)
    )
    assert "too long" in page.content.decode()
