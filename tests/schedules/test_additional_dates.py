"""Exclusion calendars: additional dates of events (RDATE), and what is refused instead of left out."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.schedules import ical
from dispatch.schedules.models import ExclusionCalendar
from tests.schedules.test_calendars import NOW, day, entries, ics
from tests.support import factories as make
from tests.support.factories import browser

WEEKLY = "RRULE:FREQ=WEEKLY;COUNT=2"


def starts(*events: str) -> list[str]:
    return [entry[0] for entry in entries(*events)]


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (day("20270301", "Days", "RDATE;VALUE=DATE:20270405,20270506"),
         ["2027-03-01", "2027-04-05", "2027-05-06"]),
        (day("20270301", "Days", "RDATE;VALUE=DATE:20270405", "RDATE;VALUE=DATE:20270506", WEEKLY),
         ["2027-03-01", "2027-03-08", "2027-04-05", "2027-05-06"]),
        (day("20270301", "Given twice", "RDATE;VALUE=DATE:20270308,20270308", WEEKLY),
         ["2027-03-01", "2027-03-08"]),
        (day("20270301", "Excluded", "RDATE;VALUE=DATE:20270405,20270506", "EXDATE;VALUE=DATE:20270301,20270405"),
         ["2027-05-06"]),
        (day("20250101", "Long ago", "RDATE;VALUE=DATE:20250405,20270405"), ["2027-04-05"]),
        (day("20270301", "Far", "RDATE;VALUE=DATE:20350405"), ["2027-03-01", "2035-04-05"]),
        ("DTSTART;TZID=America/New_York:20270401T120000|RDATE;TZID=America/New_York:20270402T130000",
         ["2027-04-01T16:00:00+00:00", "2027-04-02T17:00:00+00:00"]),
        ("DTSTART;TZID=America/New_York:20270401T120000|RDATE;TZID=America/Phoenix:20270402T120000",
         ["2027-04-01T16:00:00+00:00", "2027-04-02T19:00:00+00:00"]),
        ("DTSTART;TZID=America/New_York:20270401T120000|RDATE:20270402T160000Z|EXDATE:20270401T160000Z",
         ["2027-04-02T16:00:00+00:00"]),
        ("DTSTART;TZID=America/New_York:20270401T120000|RDATE:20270402T120000",
         ["2027-04-01T16:00:00+00:00", "2027-04-02T16:00:00+00:00"]),
        ("DTSTART;TZID=America/New_York:20270401T120000|RRULE:FREQ=DAILY;COUNT=2|RDATE:20270402T160000Z",
         ["2027-04-01T16:00:00+00:00", "2027-04-02T16:00:00+00:00"]),
        ("DTSTART:20270401T120000|RDATE:20270402T120000", ["2027-04-01T12:00:00", "2027-04-02T12:00:00"]),
    ],
)  # fmt: skip
def test_additional_dates_become_entries(event: str, expected: list[str]) -> None:
    assert starts(event) == expected


def test_additional_date_has_the_length_and_name_of_its_event() -> None:
    event = "DTSTART:20270401T120000Z|DURATION:PT90M|SUMMARY:Test|RDATE:20270402T120000Z"
    assert entries(event)[1] == ["2027-04-02T12:00:00+00:00", "2027-04-02T13:30:00+00:00", "Test"]


def test_additional_date_that_is_moved_leaves_its_original_time() -> None:
    series = day("20270301", "Series", "UID:a", "RDATE;VALUE=DATE:20270405")
    moved = day("20270407", "Moved", "UID:a", "RECURRENCE-ID;VALUE=DATE:20270405")
    assert starts(series, moved) == ["2027-03-01", "2027-04-07"]


@pytest.mark.parametrize(
    ("event", "problem"),
    [
        ("DTSTART:20270401T120000Z|SUMMARY:Test|RDATE;VALUE=PERIOD:20270402T120000Z/PT1H",
         "“Test” has an RDATE with a period, which is not supported."),
        (day("20270301", "Days", "RDATE:20270405T120000Z"), "“Days” has an RDATE of another kind than its start."),
        ("DTSTART:20270401T120000Z|SUMMARY:Test|RDATE;VALUE=DATE:20270402",
         "“Test” has an RDATE of another kind than its start."),
        (day("20270301", "Days", "RDATE;VALUE=DATE:2027"), "“Days” has no usable start"),
        (day("20270301", "Days", "RDATE;VALUE=DATE:99991231"), "“Days” has no usable start"),
        (day("20270301", "Days", "EXRULE:FREQ=DAILY"), "“Days” has an EXRULE, which is not supported."),
        (day("20270310", "Moved", "UID:a", "RECURRENCE-ID;VALUE=DATE:soon"),
         "“Moved” has no usable RECURRENCE-ID."),
        (day("20270310", "Moved", "RECURRENCE-ID;RANGE=THISANDFUTURE;VALUE=DATE:20270308"),
         "“Moved” changes all instances from 2027-03-08 on (RANGE=THISANDFUTURE), which is not supported."),
        (day("20270310", "Ended", "STATUS:CANCELLED", "RECURRENCE-ID;RANGE=THISANDFUTURE;VALUE=DATE:20270308"),
         "“Ended” changes all instances from 2027-03-08 on"),
    ],
)  # fmt: skip
def test_unsupported_properties_are_refused_by_event(event: str, problem: str) -> None:
    with pytest.raises(ical.UnreadableCalendar) as refused:
        ical.read_entries(ics(day("20270301", "Series", "UID:a", WEEKLY), event), NOW)
    assert problem in str(refused.value)


def test_many_additional_dates_end_early() -> None:
    dates = ",".join(["20270405"] * 26_000)
    events = [day("20270301", "Days", f"RDATE;VALUE=DATE:{dates}")]
    assert starts(*events) == ["2027-03-01", "2027-04-05"]


@pytest.mark.django_db
def test_the_admin_sees_what_is_not_supported() -> None:
    organization = make.organization()
    client: Client = browser(make.admin(organization))
    ranged = day("20270310", "Moved", "UID:a", "RECURRENCE-ID;RANGE=THISANDFUTURE;VALUE=DATE:20270308")
    content = ics(day("20270301", "Series", "UID:a", WEEKLY), ranged)
    given: dict[str, Any] = {"organization": organization.pk, "name": "Days", "url": "", "content": content}
    page = client.post(reverse("admin:schedules_exclusioncalendar_add"), given).content.decode()
    assert "The event “Moved” changes all instances from 2027-03-08 on (RANGE=THISANDFUTURE)" in page
    assert not ExclusionCalendar.objects.exists()
