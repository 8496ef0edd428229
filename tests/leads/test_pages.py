"""The pages of leads, as dispatchers and admins use them."""

from __future__ import annotations

from datetime import time, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.test import Client
from django.urls import reverse

from dispatch.console.leads import queries
from dispatch.core import clock
from dispatch.leads import progress
from dispatch.leads.go_live_preview import hours_of
from dispatch.leads.models import Campaign, DoNotCall, Lead, LeadDispatch
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db


@pytest.fixture
def campaign() -> Campaign:
    organization = make.organization()
    pool = make.pool(organization)
    make.number(organization, pool=pool, max_channels=7)
    return Campaign.objects.create(
        organization=organization, pool=pool, code="spring", name="Spring sale", script="Hello."
    )


@pytest.fixture
def dispatcher(campaign) -> Client:
    return browser(make.dispatcher(campaign.organization))


def lead(campaign: Campaign, **fields: object) -> Lead:
    return campaign.leads.create(organization=campaign.organization, **{"phone": make.phone(), **fields})


def text(answer) -> str:
    return " ".join(answer.content.decode().split())


def test_page_shows_why_leads_wait_and_until_when(campaign, dispatcher):
    opens = clock.now() + timedelta(hours=3)
    for _ in range(3):
        lead(campaign, reason="outside_window", due_at=opens)
    lead(campaign, due_at=clock.now() - timedelta(minutes=5))
    lead(campaign, reason="campaign_paused", due_at=clock.now() + timedelta(days=365))
    page = text(dispatcher.get(reverse("console:leads")))
    for words in ("Outside the campaign's hours at the person's location", "Waiting for a line", "0 of 7"):
        assert words in page.replace("&#x27;", "'")
    assert "Its campaign is paused" in page
    assert "Spring sale" in page


def test_page_without_a_campaign_says_what_to_do():
    organization = make.organization()
    page = text(browser(make.admin(organization)).get(reverse("console:leads")))
    assert "No campaign yet" in page
    assert reverse("admin:leads_campaign_add") in page


def test_a_campaign_is_paused_and_resumed(campaign, dispatcher):
    for action, paused in (("pause", True), ("resume", False)):
        dispatcher.post(reverse("console:leads_campaign", args=[campaign.pk, action]))
        campaign.refresh_from_db()
        assert campaign.is_paused is paused


def test_only_an_admin_goes_live(campaign, dispatcher):
    dispatcher.post(reverse("console:leads_switch"), {"mode": "live"})
    assert not LeadDispatch.objects.exists()
    admin = browser(make.admin(campaign.organization))
    admin.post(reverse("console:leads_switch"), {"mode": "live", "confirmed": "1"})
    admin.post(reverse("console:leads_switch"), {"paused": "1"})
    row = LeadDispatch.objects.get()
    assert (row.mode, row.is_paused) == ("live", True)


def test_a_phone_is_looked_up_with_why_it_was_not_called(campaign, dispatcher):
    lead(campaign, phone="+16025550134", reason="attempts_24h", due_at=clock.now() + timedelta(hours=2))
    DoNotCall.objects.create(organization=campaign.organization, phone="+16025550134", source="key")
    page = text(dispatcher.get(reverse("console:leads_phone") + "?q=602 555 0134"))
    assert "Reached the maximum number of calls in 24 hours" in page
    assert "On the do-not-call list" in page
    assert "isn't a valid phone number" in text(dispatcher.get(reverse("console:leads_phone") + "?q=12"))
    assert "No leads with this number" in text(dispatcher.get(reverse("console:leads_phone") + "?q=602 555 0199"))


def test_a_waiting_lead_is_called_now_or_cancelled(campaign, dispatcher):
    later = lead(campaign, due_at=clock.now() + timedelta(days=1))
    dispatcher.post(reverse("console:leads_act", args=[later.pk, "now"]))
    later.refresh_from_db()
    assert later.due_at <= clock.now()
    dispatcher.post(reverse("console:leads_act", args=[later.pk, "cancel"]))
    later.refresh_from_db()
    assert later.outcome == "cancelled"


def test_other_organizations_leads_are_inaccessible(campaign):
    stranger = browser(make.admin(make.organization()))
    mine = lead(campaign)
    assert stranger.post(reverse("console:leads_act", args=[mine.pk, "cancel"])).status_code == 404
    assert stranger.post(reverse("console:leads_campaign", args=[campaign.pk, "pause"])).status_code == 404
    assert "Spring sale" not in text(stranger.get(reverse("console:leads")))
    phone = str(mine.phone).replace("+", "%2B")
    assert "No leads with this number" in text(stranger.get(reverse("console:leads_phone") + f"?q={phone}"))
    sent = stranger.post(
        reverse("console:leads_upload"), {"campaign": "spring", "file": file("phone\n6025550134\n")}
    )
    assert sent.status_code == 422
    assert Lead.objects.count() == 1


def file(content: str | bytes) -> SimpleUploadedFile:
    return SimpleUploadedFile("leads.csv", content.encode() if isinstance(content, str) else content, "text/csv")


def test_a_file_is_uploaded_and_its_bad_lines_are_named(campaign, dispatcher):
    content = (
        "Phone,due_at,lat,lng,external_id,First name\n"
        "602 555 0101,2027-01-05 09:30,33.4,-112.0,A-1,Ann\n"
        "nobody,,,,A-2,Bob\n"
        "602 555 0102,tomorrow,,,A-3,Eve\n"
        "602 555 0101,2027-01-05 09:30,33.4,-112.0,A-1,Ann\n"
    )
    answer = dispatcher.post(reverse("console:leads_upload"), {"campaign": "spring", "file": file(content)})
    page = text(answer)
    assert "1 added to Spring sale, 1 already existed, 2 could not be added" in page
    assert '<td class="number">3</td><td>phone</td>' in page
    assert '<td class="number">4</td><td>due_at</td>' in page
    added = Lead.objects.get()
    assert (added.external_id, added.data, added.lat) == ("A-1", {"first name": "Ann"}, 33.4)
    assert added.due_at.isoformat() == "2027-01-05T16:30:00+00:00"  # 9:30 in Phoenix


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("name\nAnn\n", "must name the columns, including phone"),
        ("phone\n", "no rows below its header"),
        ("", "must name the columns, including phone"),
        (b"phone\n\xff\xfe", "not UTF-8"),
        ('phone\n"602', "not valid CSV"),
        ("phone\n" + "6025550101\n" * 10_001, "more than 10,000 rows"),
        ("phone" + ",a" * 20_000 + "\n1\n", "A file can have at most 100. Nothing was added."),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_read_adds_nothing_and_says_why(campaign, dispatcher, content, words):
    answer = dispatcher.post(reverse("console:leads_upload"), {"campaign": "spring", "file": file(content)})
    assert answer.status_code == 422
    assert words in text(answer)
    assert not Lead.objects.exists()


def test_leads_are_counted_by_the_hour_where_the_organization_is(campaign, dispatcher):
    clock.travel(3600 - clock.now().timestamp() % 3600 + 600)  # ten minutes past: no hour ends meanwhile
    begins = clock.now().replace(minute=0, second=0, microsecond=0)
    for hours, count in ((-3, 1), (0, 2), (5, 3), (23, 1), (24, 4)):
        for _ in range(count):
            lead(campaign, due_at=begins + timedelta(hours=hours, minutes=59))
    found = queries.load_overview(campaign.organization)
    zone = ZoneInfo(campaign.organization.time_zone)
    assert [tally.words for tally in found.hours] == [
        f"{(begins + timedelta(hours=hour)).astimezone(zone):%H}" for hour in range(24)
    ]
    assert {n: tally.count for n, tally in enumerate(found.hours) if tally.count} == {0: 3, 5: 3, 23: 1}
    assert sum(wait.count for wait in found.waits) == found.waiting == 11


def test_count_of_many_leads_is_cached(campaign, monkeypatch, django_assert_num_queries):
    monkeypatch.setattr(progress, "LARGE_CAMPAIGN_ROWS", 3)
    monkeypatch.setattr(progress, "CACHE_TTL_FACTOR", 10**6)
    for _ in range(3):
        lead(campaign)
    hours = [clock.now() + timedelta(hours=step) for step in range(3)]
    before = progress.count_leads(campaign.organization_id, hours)
    lead(campaign)
    with django_assert_num_queries(0):
        assert progress.count_leads(campaign.organization_id, hours) == before
    other = make.organization()
    assert progress.count_leads(other.pk, hours) == []
    assert sum(one.leads for one in progress.count_leads(campaign.organization_id, hours[1:])) == 4


def line_of(campaign: Campaign) -> queries.CampaignRow:
    (found,) = queries.load_overview(campaign.organization).campaigns
    return found


@pytest.mark.parametrize(
    ("outcomes", "state"),
    [
        (["answered"], ("good", "Done")),
        (["do_not_call", "no_answer"], ("good", "Done")),
        (["dry_run"], ("idle", "No calls made")),
        (["no_consent"], ("idle", "No calls made")),
        (["cancelled", "do_not_call", "outside_window", "precheck_failed"], ("idle", "No calls made")),
        ([], ("idle", "Empty")),
    ],
)
def test_a_campaign_is_done_only_when_somebody_was_called(campaign, outcomes, state):
    for outcome in outcomes:
        lead(campaign, status="finished", outcome=outcome, finished_at=clock.now())
    assert line_of(campaign).state == state


def test_a_campaign_in_a_dry_run_is_not_done(campaign, dispatcher):
    LeadDispatch.objects.create(organization=campaign.organization, mode="dry_run")
    later = clock.now() + timedelta(days=365)
    for _ in range(3):
        lead(campaign, reason="dry_run", due_at=later, simulated_at=clock.now(), simulated_outcome="called")
    assert line_of(campaign).state == ("waiting", "Dry run")
    page = text(dispatcher.get(reverse("console:leads")))
    assert "Calls are simulated, and nobody is called." in page
    assert "Simulated in the dry run; will be called when you go live" in page
    assert "Done" not in page


def test_going_live_says_whom_it_calls_and_asks(campaign):
    organization = campaign.organization
    LeadDispatch.objects.create(organization=organization)
    silent = {"organization": organization, "pool": campaign.pool}
    paused = Campaign.objects.create(**silent, code="p", name="Paused one", script="Hello.", is_paused=True)
    mute = Campaign.objects.create(**silent, code="m", name="Mute one")
    lead(campaign, reason="organization_off", due_at=clock.now() + timedelta(days=365))
    lead(campaign, phone="+16025550188")
    lead(campaign, phone="+16025550188")
    lead(campaign, due_at=clock.now() + timedelta(hours=2), wanted_at=clock.now() + timedelta(hours=2))
    lead(campaign, status="finished", outcome="answered", finished_at=clock.now())
    lead(paused)
    lead(mute)
    admin = browser(make.admin(organization))
    asked = admin.post(reverse("console:leads_switch"), {"mode": "live"}, follow=True)
    assert LeadDispatch.objects.get().mode == "off"
    page = text(asked)
    for words in (
        "Go live and call 3 people", "2 of 3 people are due now",
        "Calls start right away within their hours, up to 7 at once", "08:00–21:00, every day",
        "2 campaigns won't call anyone", "No script: nobody is called until you write one.",
        "Paused: nobody is called until you resume it.",
    ):  # fmt: skip
        assert words in page
    admin.post(reverse("console:leads_switch"), {"mode": "live", "confirmed": "1"})
    assert LeadDispatch.objects.get().mode == "live"


def test_going_live_without_people_or_lines_says_so(campaign):
    admin = browser(make.admin(campaign.organization))
    assert "Nobody is waiting to be called." in text(admin.get(reverse("console:leads_go_live")))
    lead(campaign)
    campaign.pool.numbers.update(is_paused=True)
    page = text(admin.get(reverse("console:leads_go_live")))
    assert "No caller number is available." in page
    assert "call 1 person" not in page


def test_a_dispatcher_does_not_get_to_go_live(campaign, dispatcher):
    page = text(dispatcher.get(reverse("console:leads_go_live"), follow=True))
    assert "Only admins can turn calling on or off." in page


@pytest.mark.parametrize(
    ("window", "days", "words"),
    [
        (("08:00", "21:00"), [0, 1, 2, 3, 4, 5, 6], "08:00–21:00, every day"),
        (("09:30", "17:00"), [0, 1, 2, 3, 4], "09:30–17:00, Mon–Fri"),
        (("00:00", "00:00"), [5, 6], "at any hour, Sat, Sun"),
        (("00:00", "00:00"), [0, 2, 4], "at any hour, Mon, Wed, Fri"),
        (("08:00", "21:00"), [], "never, because no weekday is selected"),
    ],
)
def test_hours_are_shown_briefly(campaign, window, days, words):
    campaign.window_from, campaign.window_until = map(time.fromisoformat, window)
    campaign.weekdays = days
    assert hours_of(campaign) == words


def test_an_upload_counts_the_duplicates_that_it_leaves_out(campaign, dispatcher):
    lead(campaign, phone="+16025550101")
    content = "phone,external_id\n602 555 0101,A\n6025550102,B\n(602) 555-0102,C\nbanana,D\n"
    page = text(dispatcher.post(reverse("console:leads_upload"), {"campaign": "spring", "file": file(content)}))
    assert "1 added to Spring sale, 2 duplicates skipped, 1 could not be added." in page
    assert Lead.objects.count() == 2
