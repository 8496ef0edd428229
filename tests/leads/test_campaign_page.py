"""The page of one campaign: its figures, its leads by filter and page, its export, and the call to oneself."""

from __future__ import annotations

import json
import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts.models import User
from dispatch.capacity.models import OutboundNumber
from dispatch.console.leads import campaign_queries
from dispatch.core import clock
from dispatch.leads import progress
from dispatch.leads.models import Campaign, KeyBranch, Lead
from dispatch.telephony.models import Call
from tests.support import factories as make
from tests.support.factories import browser
from tests.support.plans import forget_statistics

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization(time_zone="America/Phoenix")
    number = make.number(organization, max_channels=7)
    return Campaign.objects.create(
        organization=organization, pool=number.pool, code="spring", name="Spring sale", script="Hello {name}."
    )


@pytest.fixture
def admin(campaign: Campaign) -> User:
    return make.admin(campaign.organization)


@pytest.fixture
def page(admin: User) -> Client:
    return browser(admin)


def add(campaign: Campaign, **fields: Any) -> Lead:
    if fields.get("outcome"):
        fields |= {"status": "finished", "finished_at": clock.now()}
    return Lead.objects.create(
        organization=campaign.organization, campaign=campaign, **{"phone": make.phone(), **fields}
    )


def called(lead: Lead, **fields: Any) -> Call:
    number = OutboundNumber.objects.get(pool=lead.campaign.pool)
    values = {
        "organization": lead.organization, "purpose": "lead", "subject_id": lead.pk, "attempt": 1,
        "account": number.account, "number": number, "pool": number.pool, "line_slot": 1, "pool_slot": 1,
        "to_phone": lead.phone, "from_phone": number.phone, "place_by": clock.now(), "status": "completed",
        "context": {"campaign_id": lead.campaign_id}, "requested_at": clock.now(), "ended_at": clock.now(),
    }  # fmt: skip
    return Call.objects.create(**{**values, **fields})


def show(client: Client, campaign: Campaign, **query: str) -> str:
    answer = client.get(reverse("console:campaign", args=[campaign.pk]), query)
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_the_page_shows_outcomes_keys_cost_and_live_calls(campaign: Campaign, page: Client) -> None:
    KeyBranch.objects.create(
        organization=campaign.organization, campaign=campaign, key="1", say="x", disposition="wants_quote"
    )
    called(add(campaign, outcome="answered", disposition="wants_quote"), keys_pressed="1", price="0.02",
           price_unit="USD", duration_s=4)  # fmt: skip
    called(add(campaign, outcome="busy"), status="busy")
    ringing = add(campaign, status="processing", claimed_at=clock.now(), token=1)
    called(ringing, status="ringing", ended_at=None, line_slot=2, pool_slot=2)
    add(campaign)
    shown = show(page, campaign)
    for words in ("1: wants_quote", "0.02 USD", "Ringing", "3 calls, 1 answered", "Call me first"):
        assert words in shown, words


def test_the_page_says_how_often_the_voice_agent_failed(campaign: Campaign, page: Client) -> None:
    called(add(campaign, outcome="answered", disposition="agent_unreachable"), error_code="no_agent")
    assert "The voice agent failed in 1 call of the last 24 hours" in show(page, campaign)


def test_leads_are_filtered_and_paged(campaign: Campaign, page: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_queries, "PAGE", 2)
    leads = [add(campaign, outcome="busy") for _ in range(3)]
    add(campaign, phone="+16025550190", outcome="answered", disposition="sold")
    rows, older = campaign_queries.page_of(campaign_queries.filtered_leads(campaign, {"show": "busy"}), None)
    assert ([row.pk for row in rows], older) == ([leads[2].pk, leads[1].pk], leads[1].pk)
    rows, older = campaign_queries.page_of(campaign_queries.filtered_leads(campaign, {"show": "busy"}), str(older))
    assert ([row.pk for row in rows], older) == ([leads[0].pk], None)
    for query in ({"show": "answered"}, {"disposition": "sold"}, {"phone": "602 555 0190"}):
        assert "(602) 555-0190" in show(page, campaign, **query)
    assert "No results match your filters" in show(page, campaign, phone="banana")
    assert "Older" in show(page, campaign)


def parts_of(answer: Any) -> list[bytes]:
    async def read() -> list[bytes]:
        return [part async for part in answer.streaming_content]

    parts: list[bytes] = async_to_sync(read)()
    return parts


def whole(answer: Any) -> str:
    return b"".join(parts_of(answer)).decode()


def test_an_export_is_read_and_sent_in_pages(
    campaign: Campaign, page: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign_queries, "EXPORT_PAGE", 2)
    monkeypatch.setattr(campaign_queries, "EXPORT_MOST", 6)
    leads = [add(campaign).pk for _ in range(7)]
    answer = page.get(reverse("console:campaign_export", args=[campaign.pk]))
    with CaptureQueriesContext(connection) as statements:
        head, *parts = parts_of(answer)
    assert head.startswith("\ufeffid,phone".encode())
    ids = [[int(line.split(b",")[0]) for line in part.splitlines()] for part in parts]
    assert ids == [leads[:-3:-1], leads[-3:-5:-1], leads[-5:-7:-1]]
    assert len([each for each in statements if "leads_lead" in each["sql"]]) == 3


def test_an_export_has_the_filtered_leads_and_no_formulas(campaign: Campaign, page: Client) -> None:
    sold = {"outcome": "answered", "disposition": "sold", "notes": "=1+1", "data": {"name": "Ann;=2+2"}}
    add(campaign, **sold, phone="+16025550190")
    add(campaign)
    answer = page.get(reverse("console:campaign_export", args=[campaign.pk]), {"show": "answered"})
    head, *rows = whole(answer).removeprefix("\ufeff").splitlines()
    assert head.startswith("id,phone,external_id,status,outcome,disposition")
    assert len(rows) == 1
    assert "'=1+1" in rows[0]
    assert "Ann;'=2+2" in rows[0]
    assert "+16025550190" in rows[0]


def test_an_admin_is_called_with_the_script(campaign: Campaign, page: Client, admin: User) -> None:
    url = reverse("console:campaign_call_me", args=[campaign.pk])
    assert "has no phone number" in page.post(url, follow=True).content.decode()
    User.objects.filter(pk=admin.pk).update(phone="+16025550199")
    assert "hear the script and can press its keys" in page.post(url, follow=True).content.decode()
    call = Call.objects.get()
    assert (call.purpose, call.context["preview_id"], str(call.to_phone)) == ("test", campaign.pk, "+16025550199")


def test_a_dispatcher_places_no_test_calls(campaign: Campaign) -> None:
    dispatcher = browser(make.dispatcher(campaign.organization))
    answer = dispatcher.post(reverse("console:campaign_call_me", args=[campaign.pk]), follow=True)
    assert "Only admins can place test calls" in answer.content.decode()
    assert not Call.objects.exists()


@pytest.mark.parametrize("name", ["campaign", "campaign_figures", "campaign_export"])
def test_another_tenants_campaign_is_not_found(campaign: Campaign, name: str) -> None:
    stranger = browser(make.admin(make.organization()))
    assert stranger.get(reverse(f"console:{name}", args=[campaign.pk])).status_code == 404


def test_a_page_reads_few_rows_of_tables_that_were_never_analyzed(campaign: Campaign) -> None:
    other = Campaign.objects.create(
        organization=campaign.organization, pool=campaign.pool, code="other", name="Other", script="Hi"
    )
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO leads_lead (organization_id, campaign_id, phone, customer, external_id, data, status,
                outcome, reason, wanted_at, due_at, attempts, token, worker, last_outcome, created_at, finished_at)
            SELECT %s, %s, '+1602' || 2550000 + n, '', '', '{}', 'finished', 'answered', '', now(), now(), 1, 1,
                '', '', now(), now() FROM generate_series(1, 4000) n
            """,
            [campaign.organization_id, other.pk],
        )
    for _ in range(3):
        add(campaign)
    leads = campaign_queries.filtered_leads(campaign, {})[: campaign_queries.PAGE]
    statement, params = leads.query.sql_with_params()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_bitmapscan = off")
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", params)
        (plan,) = cursor.fetchone()
    plan = json.loads(plan) if isinstance(plan, str) else plan
    text = json.dumps(plan)
    assert "lead_newest_of_campaign" in text
    assert '"Rows Removed by Filter"' not in text


def test_counts_of_the_page_are_those_of_its_campaign(campaign: Campaign) -> None:
    progress.reset()
    other = Campaign.objects.create(
        organization=campaign.organization, pool=campaign.pool, code="other", name="Other", script="Hi"
    )
    add(other)
    add(campaign, due_at=clock.now() + timedelta(days=1))
    add(campaign, outcome="answered")
    row, outcomes = campaign_queries.load_row(campaign)
    assert (row.waiting, row.finished, row.answered) == (1, 1, 1)
    assert [bar.count for bar in outcomes] == [1]


def test_figures_that_take_long_are_shared(campaign: Campaign, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign_queries, "_cached_days", {})
    called(add(campaign, outcome="busy"), status="busy")
    monkeypatch.setattr(campaign_queries, "SLOW_S", 3600.0)
    assert campaign_queries.load_day(campaign) is not campaign_queries.load_day(campaign)
    monkeypatch.setattr(campaign_queries, "SLOW_S", 0.0)
    monkeypatch.setattr(campaign_queries, "_load_day", lambda _: campaign_queries.DayFigures(calls=1))
    monkeypatch.setattr(
        campaign_queries, "time", SimpleNamespace(monotonic=iter([0.0, 0.0, 9.0, 9.0, 10.0]).__next__)
    )
    first = campaign_queries.load_day(campaign)
    assert campaign_queries.load_day(campaign) is first


def test_calls_of_the_day_are_read_by_time_whatever_the_statistics(campaign: Campaign) -> None:
    params = {"organization": campaign.organization_id, "campaign": campaign.pk, "since": clock.now()}
    forget_statistics(["telephony_call"])
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN (FORMAT JSON) {campaign_queries.CALLS_OF_DAY}", params)
        (plan,) = cursor.fetchone()
    conditions = re.findall(r'"Index Cond": "([^"]*)', json.dumps(plan))
    assert any("requested_at >" in condition for condition in conditions), plan
    assert "purpose" not in "".join(conditions), plan
