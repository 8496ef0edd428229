"""Reports by email: sent once at the chosen hour, retried, and ended with the rights of the member."""

from __future__ import annotations

import csv
import io
import re
import smtplib
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from django.core import mail
from django.test import Client

from accounts import services as accounts
from accounts.models import Membership, Organization, ReportSubscription
from dispatch.console.reports import due_times, report_mail, subscriptions
from dispatch.console.reports.kinds import KINDS
from dispatch.core import clock, fault_injection
from dispatch.core.events import SYSTEM
from dispatch.core.languages import date_words
from dispatch.core.models import Event
from dispatch.jobs.models import Job, Offer
from dispatch.leads.models import Campaign
from tests.console.test_board import Desk
from tests.console.test_report_pages import called
from tests.support import factories as make

pytestmark = pytest.mark.django_db
PHOENIX = "America/Phoenix"


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


@pytest.fixture
def member(desk) -> Membership:
    return Membership.objects.get(user=desk.person)


def subscribed(member: Membership, report: str = "overview", frequency: str = "daily") -> ReportSubscription:
    """Subscribe the member, and move the clock to when the report is due."""
    row = subscriptions.subscribe(member, report, frequency, 7, actor=SYSTEM)
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    return row


def later(seconds: float) -> None:
    clock.travel(seconds)


def kinds() -> list[str]:
    return [kind.split(".")[1] for kind in Event.objects.filter(subject_type="report_subscription").order_by("id")
            .values_list("kind", flat=True)]  # fmt: skip


@pytest.mark.parametrize(
    ("frequency", "after", "due", "covered"),
    [
        ("daily", "2026-03-10T13:59", "2026-03-10T14:00", ("2026-03-09", "2026-03-09")),
        ("daily", "2026-03-10T14:00", "2026-03-11T14:00", ("2026-03-10", "2026-03-10")),
        ("weekly", "2026-03-10T14:00", "2026-03-16T14:00", ("2026-03-09", "2026-03-15")),
        ("weekly", "2026-03-16T13:00", "2026-03-16T14:00", ("2026-03-09", "2026-03-15")),
        ("monthly", "2026-03-10T14:00", "2026-04-01T14:00", ("2026-03-01", "2026-03-31")),
        ("monthly", "2026-12-31T14:00", "2027-01-01T14:00", ("2026-12-01", "2026-12-31")),
    ],
)
def test_when_a_report_is_due_and_what_it_covers(frequency, after, due, covered):
    moment, expected = (datetime.fromisoformat(text).replace(tzinfo=UTC) for text in (after, due))
    assert due_times.next_due(frequency, 7, PHOENIX, moment) == expected
    assert due_times.last_due(frequency, 7, PHOENIX, expected) == expected
    assert due_times.last_due(frequency, 7, PHOENIX, expected - timedelta(seconds=1)) < expected
    assert due_times.covered_days(frequency, expected, PHOENIX) == tuple(map(date.fromisoformat, covered))


@pytest.mark.parametrize("day", [date(2026, 3, 8), date(2026, 11, 1)])  # the clock skips 2:00, and has 1:00 twice
def test_a_day_with_a_change_of_the_clock_has_one_report(day):
    zone, moment = "America/New_York", datetime(day.year, day.month, day.day, tzinfo=UTC) - timedelta(hours=1)
    for hour in (1, 2):
        dues = []
        for _ in range(3):
            moment = due_times.next_due("daily", hour, zone, moment)
            dues.append(due_times.covered_days("daily", moment, zone)[0])
        assert dues == [dues[0] + timedelta(days=n) for n in range(3)]
        moment -= timedelta(days=4)


def test_a_member_subscribes_changes_and_ends_it_on_the_page(desk, member):
    assert "Subscribe" in desk.see("/reports/technicians/")
    address = "/reports/technicians/subscribe/"
    assert desk.client.post(address, {"frequency": "weekly", "hour": "7"}).status_code == 302
    row = ReportSubscription.objects.get()
    assert (row.membership, row.report, row.organization) == (member, "technicians", desk.organization)
    page = desk.see("/reports/technicians/")
    assert f"{date_words(row.due_at - timedelta(hours=7), year=True)}, 07:00:00 MST" in page
    assert "Unsubscribe" not in desk.see("/reports/")
    desk.client.post(address, {"frequency": "daily", "hour": "23"})
    row.refresh_from_db()
    assert (row.frequency, row.hour) == ("daily", 23)
    desk.client.post(address, {"stop": "1"})
    assert not ReportSubscription.objects.exists()
    assert kinds() == ["created", "changed", "deleted"]


@pytest.mark.parametrize("form", [{}, {"frequency": "daily", "hour": "24"}, {"frequency": "x", "hour": "7"},
                                  {"frequency": "daily", "hour": "-1"}])  # fmt: skip
def test_invalid_times_are_rejected(desk, form):
    assert desk.client.post("/reports/overview/subscribe/", form).status_code == 400
    assert not ReportSubscription.objects.exists()


def work_in_span(desk: Desk, at: datetime) -> None:
    """Let each kind of report have one row: a job with an accepted offer, and a call of a campaign."""
    job = desk.job("completed", customer_name="<b>=Cho</b>")
    Job.objects.filter(pk=job.pk).update(created_at=at)
    Offer.objects.create(
        organization=desk.organization, job=job, technician=desk.technician("Ann"), attempt=1, status="accepted",
        expires_at=at,
    )  # fmt: skip
    number = make.number(desk.organization, phone="+13125550177")
    campaign = Campaign.objects.create(
        organization=desk.organization, pool=number.pool, code="spring", name="Spring", script="Hello."
    )
    called(desk.organization, number, 1, context={"campaign_id": campaign.pk}, requested_at=at)


# The first column of each kind's table, a name in it, and a column in which that row has a 1.
FIRST_ROWS = {
    "overview": ("service", "Water heater", "jobs"),
    "technicians": ("technician", "Ann", "offers"),
    "campaigns": ("campaign", "Spring", "calls"),
    "numbers": ("number", "(312) 555-0177", "calls"),
    "customers": ("customer", "<b>=Cho</b>", "jobs"),
    "hours": (f"hour ({PHOENIX})", "11:00", "total"),
}


@pytest.mark.parametrize("report", sorted(KINDS))
@pytest.mark.parametrize("language", ["en", "es"])
def test_a_due_report_is_sent_once_with_text_html_and_csv(desk, member, report, language):
    desk.person.language = language
    desk.person.save()
    row = subscribed(member, report, "weekly")
    work_in_span(desk, row.due_at - timedelta(hours=20))  # 11:00 on the day before
    subscriptions.send_due()
    subscriptions.send_due()
    (sent,) = mail.outbox
    assert sent.to == [desk.person.email]
    assert desk.organization.name in sent.subject
    assert "\n" not in sent.subject
    assert "<b>=Cho" not in sent.alternatives[0][0]
    name, content, mimetype = sent.attachments[0]
    first, last = due_times.covered_days("weekly", row.due_at, desk.organization.time_zone)
    assert (name.endswith(f"{first}-{last}.csv"), mimetype) == (True, "text/csv")
    first_column, of, ones = FIRST_ROWS[report]
    rows = list(csv.DictReader(io.StringIO(content.removeprefix("\ufeff"))))
    assert [row[ones] for row in rows if row[first_column] == of] == ["1"]
    assert ("Darse de baja" if language == "es" else "Unsubscribe") in sent.body
    assert f"&in={desk.organization.slug}" in sent.body
    row.refresh_from_db()
    assert row.due_at == row.next_attempt_at == due_times.next_due("weekly", 7, PHOENIX, clock.now())
    assert kinds() == ["created", "sent"]


def test_the_attached_file_has_the_table_that_the_mail_begins(desk, member, monkeypatch):
    monkeypatch.setattr(report_mail, "MAX_SHOWN", 2)
    row = subscribed(member, "overview")
    for name in ("Gas", "Roof", "Water"):
        service = make.service_type(desk.organization, name.lower(), name=name)
        job = desk.job("completed", service_type=service)
        Job.objects.filter(pk=job.pk).update(created_at=row.due_at - timedelta(hours=20))
    subscriptions.send_due()
    (sent,) = mail.outbox
    assert re.findall("^- (.*?):", sent.body, re.MULTILINE) == ["Gas", "Roof"]
    assert "More in the attached file." in sent.body
    name, content, _ = sent.attachments[0]
    assert "-by-service-" in name
    rows = list(csv.DictReader(io.StringIO(content.removeprefix("\ufeff"))))
    assert [(row["service"], row["jobs"]) for row in rows] == [("Gas", "1"), ("Roof", "1"), ("Water", "1")]


def test_a_spanish_report_has_no_english_headings(desk, member):
    desk.person.language = "es"
    desk.person.save()
    row = subscribed(member, "overview")
    Job.objects.filter(pk=desk.job("completed").pk).update(created_at=row.due_at - timedelta(hours=20))
    subscriptions.send_due()
    words = re.findall(r"\w+", mail.outbox[0].body.replace("Water heater", "").split("://")[0])
    assert not {"Jobs", "Answered", "share", "of", "and", "the", "Open", "By", "previous", "to"} & set(words)


def test_an_unavailable_mail_server_is_tried_again(desk, member, monkeypatch):
    row = subscribed(member)
    refuse = {"on": True}
    send = report_mail.EmailMultiAlternatives.send

    def fail(message: Any, *args: Any) -> Any:
        if refuse["on"]:
            raise smtplib.SMTPConnectError(421, b"busy")
        return send(message, *args)

    monkeypatch.setattr(report_mail.EmailMultiAlternatives, "send", fail)
    subscriptions.send_due()
    row.refresh_from_db()
    assert "busy" in row.error
    assert row.sending_since is None
    assert "busy" in desk.see("/reports/")
    refuse["on"] = False
    subscriptions.send_due()
    assert not mail.outbox  # not before the pause
    later(subscriptions.RETRIES_S[0] + 1)
    subscriptions.send_due()
    assert len(mail.outbox) == 1
    row.refresh_from_db()
    assert (row.error, row.attempts) == ("", 0)


def test_a_report_that_cannot_be_sent_waits_for_its_next_day(desk, member, monkeypatch):
    row = subscribed(member)
    monkeypatch.setattr(report_mail, "build_message", lambda *_: 1 / 0)
    for pause in (0, *subscriptions.RETRIES_S):
        later(pause + 1)
        subscriptions.send_due()
    row.refresh_from_db()
    assert row.attempts == 0
    assert row.next_attempt_at > clock.now()
    assert kinds() == ["created", "failed"]


@pytest.mark.parametrize(("point", "sent"), [("claimed", 1), ("sending", 0), ("sent", 1)])
def test_a_kill_at_any_point_sends_no_report_twice(desk, member, point, sent):
    row = subscribed(member)
    with fault_injection.arm_crash_point(f"reports.mail.{point}"), pytest.raises(fault_injection.Interrupted):
        subscriptions.send_due()
    subscriptions.send_due()  # another process, before the claim lapses
    later(subscriptions.CLAIM.total_seconds() + 1)
    for _ in range(3):
        subscriptions.send_due()
    assert len(mail.outbox) == sent
    row.refresh_from_db()
    assert row.next_attempt_at > clock.now()
    assert row.error == ("" if point == "claimed" else subscriptions.INTERRUPTED)


def test_a_row_that_cannot_be_read_does_not_hold_back_others(desk, member, browser, monkeypatch):
    row = subscribed(member)
    other = Desk(browser)
    ready = subscriptions.subscribe(
        Membership.objects.get(user=other.person), "overview", "daily", 7, actor=SYSTEM
    )
    now = clock.now()
    ReportSubscription.objects.filter(pk=ready.pk).update(next_attempt_at=now)
    ReportSubscription.objects.filter(pk=row.pk).update(sending_since=now, next_attempt_at=now - timedelta(days=1))
    Organization.objects.filter(pk=desk.organization.pk).update(time_zone="Nowhere/None")
    monkeypatch.setattr(subscriptions, "BATCH", 1)
    for _ in range(2):
        subscriptions.send_due()
    assert [sent.to for sent in mail.outbox] == [[other.person.email]]
    row.refresh_from_db()
    assert row.next_attempt_at > now


def test_of_two_processes_one_sends(desk, member):
    row = subscribed(member)
    first = subscriptions._claim(row.pk)
    assert first is not None
    assert subscriptions._claim(row.pk) is None
    assert subscriptions.send(row.pk) == 0


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_subscription_ends_with_the_rights_of_the_member(desk, member, when, monkeypatch):
    subscribed(member)

    def leave() -> None:
        Membership.objects.filter(pk=member.pk).update(is_active=False, on_duty=False)

    if when == "before":
        leave()
        subscriptions.send_due()
        assert not ReportSubscription.objects.exists()
        assert kinds() == ["created", "deleted"]
    else:
        build = report_mail.build_message

        def leave_meanwhile(*args: Any) -> Any:
            leave()
            return build(*args)

        monkeypatch.setattr(report_mail, "build_message", leave_meanwhile)
        subscriptions.send_due()
    assert not mail.outbox


def test_a_deactivated_user_gets_no_report(desk, member):
    subscribed(member)
    desk.person.is_active = False
    desk.person.save()
    subscriptions.send_due()
    assert not mail.outbox
    assert not ReportSubscription.objects.exists()


def test_an_organization_that_is_switched_off_sends_no_report(desk, member):
    row = subscribed(member)
    desk.organization.is_active = False
    desk.organization.save()
    subscriptions.send_due()
    assert not mail.outbox
    row.refresh_from_db()
    assert row.next_attempt_at > clock.now()


def test_the_link_in_the_mail_unsubscribes_without_signing_in(desk, member):
    row = subscribed(member)
    subscriptions.send_due()
    link = mail.outbox[0].extra_headers["List-Unsubscribe"].strip("<>")
    path = re.sub(r"^https?://[^/]+", "", link)
    stranger = Client(enforce_csrf_checks=True)
    page = stranger.get(path)
    assert page.status_code == 200
    assert "Stop this report?" in page.content.decode()
    assert ReportSubscription.objects.exists()  # mail programs open links in advance
    assert stranger.post(path, {"List-Unsubscribe": "One-Click"}).status_code == 200
    assert not ReportSubscription.objects.exists()
    assert stranger.get(path).status_code == 410
    assert stranger.post(path[:-2] + "x/").status_code == 404
    again = subscriptions.subscribe(member, "overview", "daily", 7, actor=SYSTEM)
    assert again.pk != row.pk
    assert stranger.post(path).status_code == 410
    assert ReportSubscription.objects.exists()


def test_a_new_time_zone_moves_the_next_report(desk, member):
    row = subscriptions.subscribe(member, "overview", "daily", 7, actor=SYSTEM)
    accounts.change_organization(desk.organization.pk, {"time_zone": "Asia/Tokyo"}, actor=SYSTEM)
    row.refresh_from_db()
    assert row.due_at.hour == 22
    assert row.next_attempt_at == row.due_at


def test_an_installation_without_a_mail_server_says_so(desk, member, settings):
    row = subscribed(member)
    settings.EMAIL_IS_SET_UP = False
    assert "No mail server is configured" in desk.see("/reports/")
    subscriptions.send_due()
    assert not mail.outbox
    row.refresh_from_db()
    assert row.next_attempt_at > clock.now()


def test_a_late_process_sends_only_the_last_report(desk, member):
    row = subscribed(member)
    later(5 * 86_400)
    for _ in range(3):
        subscriptions.send_due()
    (sent,) = mail.outbox
    first, _ = due_times.covered_days("daily", due_times.last_due("daily", 7, PHOENIX, clock.now()), PHOENIX)
    assert f"{first}" in sent.attachments[0][0]
    row.refresh_from_db()
    assert row.next_attempt_at > clock.now()
