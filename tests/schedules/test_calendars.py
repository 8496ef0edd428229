"""Exclusion calendars: reading iCalendar files, leaving out their days, refreshing by URL, API and pages."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import Mock
from zoneinfo import ZoneInfo

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import transaction

from dispatch.console.schedules import calendar
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.schedules import exclusion_cache, ical
from dispatch.schedules.models import ExclusionCalendar, Schedule
from dispatch.schedules.rules import due as due_rules
from dispatch.schedules.rules.exclusions import resolve_exclusions
from dispatch.schedules.rules.recurrence import Timing, localize, preview
from dispatch.schedules.rules.stretches import measure_stretch
from dispatch.schedules.services import calendars, executor
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.schedules import ALL, ANA, World
from tests.schedules.test_kinds import Receiver
from tests.support import factories

NOW = datetime(2027, 3, 1, 16, tzinfo=UTC)  # 09:00 in Phoenix
NEW_YORK = "America/New_York"


def ics(*events: str) -> str:
    lines = ["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//Test//EN"]
    for event in events:
        lines += ["BEGIN:VEVENT", *event.split("|"), "END:VEVENT"]
    return "\r\n".join([*lines, "END:VCALENDAR", ""])


def day(date: str, name: str = "Holiday", *more: str) -> str:
    return "|".join([f"DTSTART;VALUE=DATE:{date}", f"SUMMARY:{name}", *more])


def entries(*events: str) -> list[list[str]]:
    return ical.read_entries(ics(*events), NOW)


# --- Reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (day("20271225"), [["2027-12-25", "2027-12-26", "Holiday"]]),
        (day("20271224", "Break", "DTEND;VALUE=DATE:20280102"), [["2027-12-24", "2028-01-02", "Break"]]),
        ("DTSTART:20270401T120000Z|DURATION:PT90M|SUMMARY:Test",
         [["2027-04-01T12:00:00+00:00", "2027-04-01T13:30:00+00:00", "Test"]]),
        ("DTSTART;TZID=America/New_York:20270401T120000|DTEND;TZID=America/New_York:20270401T130000|SUMMARY:Lunch",
         [["2027-04-01T16:00:00+00:00", "2027-04-01T17:00:00+00:00", "Lunch"]]),
        ("DTSTART:20270401T120000|DTEND:20270401T130000", [["2027-04-01T12:00:00", "2027-04-01T13:00:00", ""]]),
        (day("20271225", "Canceled", "STATUS:CANCELLED"), []),
        (day("20250101", "Over"), []),
        (day("20200704", "Fourth", "RRULE:FREQ=YEARLY;UNTIL=20280704"),
         [["2027-07-04", "2027-07-05", "Fourth"], ["2028-07-04", "2028-07-05", "Fourth"]]),
        (day("20270301", "Mondays", "RRULE:FREQ=WEEKLY;COUNT=3", "EXDATE;VALUE=DATE:20270308"),
         [["2027-03-01", "2027-03-02", "Mondays"], ["2027-03-15", "2027-03-16", "Mondays"]]),
    ],
)  # fmt: skip
def test_events_become_entries(event: str, expected: list[list[str]]) -> None:
    assert entries(event) == expected


@pytest.mark.parametrize(
    ("start", "original", "moved", "expected"),
    [
        ("DTSTART;VALUE=DATE:20270301", "RECURRENCE-ID;VALUE=DATE:20270308", "DTSTART;VALUE=DATE:20270310",
         ["2027-03-01", "2027-03-10", "2027-03-15"]),
        ("DTSTART:20270301T120000", "RECURRENCE-ID:20270308T120000", "DTSTART:20270310T090000",
         ["2027-03-01T12:00:00", "2027-03-10T09:00:00", "2027-03-15T12:00:00"]),
        ("DTSTART;TZID=America/Phoenix:20270301T120000", "RECURRENCE-ID:20270308T190000Z",
         "DTSTART;TZID=America/Phoenix:20270310T090000",
         ["2027-03-01T19:00:00+00:00", "2027-03-10T16:00:00+00:00", "2027-03-15T19:00:00+00:00"]),
        ("DTSTART;VALUE=DATE:20270301", "RECURRENCE-ID;VALUE=DATE:20270308",
         "DTSTART;VALUE=DATE:20270308|STATUS:CANCELLED", ["2027-03-01", "2027-03-15"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("is_moved_first", [False, True])
def test_moved_instance_leaves_its_original_time(
    start: str, original: str, moved: str, expected: list[str], is_moved_first: bool
) -> None:
    others = ["BEGIN:VEVENT|UID:other|DTSTART;VALUE=DATE:20270308|RRULE:FREQ=WEEKLY;COUNT=1|END:VEVENT"]
    events = [
        f"BEGIN:VEVENT|UID:a|SUMMARY:Every Monday|{start}|RRULE:FREQ=WEEKLY;COUNT=3|END:VEVENT",
        f"BEGIN:VEVENT|UID:a|SUMMARY:Moved|{original}|{moved}|END:VEVENT",
    ]
    text = "|".join(["BEGIN:VCALENDAR|VERSION:2.0|PRODID:x", *(events[::-1] if is_moved_first else events),
                     *others, "END:VCALENDAR|"])  # fmt: skip
    found = ical.read_entries(text.replace("|", "\r\n"), datetime(2027, 3, 1, tzinfo=UTC))
    assert [entry[0] for entry in found if entry[2]] == expected
    assert [entry[0] for entry in found if not entry[2]] == ["2027-03-08"]


def test_excluded_start_in_utc_counts_in_the_zone_of_the_event() -> None:
    lunch = "DTSTART;TZID=America/New_York:20270401T120000|RRULE:FREQ=DAILY;COUNT=3|EXDATE:20270402T160000Z"
    assert [entry[0] for entry in entries(lunch)] == ["2027-04-01T16:00:00+00:00", "2027-04-03T16:00:00+00:00"]


def test_moved_instance_without_a_uid_affects_no_other_event() -> None:
    weekly = day("20270301", "Every Monday", "RRULE:FREQ=WEEKLY;COUNT=2")
    moved = day("20270310", "Moved", "RECURRENCE-ID;VALUE=DATE:20270308")
    found = ical.read_entries(ics(weekly, moved), datetime(2027, 3, 1, tzinfo=UTC))
    assert [entry[0] for entry in found] == ["2027-03-01", "2027-03-08", "2027-03-10"]


ENDLESS_ZONE = """BEGIN:VTIME
 ZONE
TZID:Custom/Zone
BEGIN:STANDARD
DTSTART:19700101T000000
RRULE:FREQ=SECONDLY
TZOFFSETFROM:+0000
TZOFFSETTO:+0100
END:STANDARD
END:VTIMEZONE
BEGIN:VEVENT"""


def test_time_zones_of_the_file_are_not_evaluated() -> None:
    content = ics("DTSTART;TZID=Custom/Zone:20270401T120000|DURATION:PT1H|SUMMARY:Lunch")
    hostile = content.replace("BEGIN:VEVENT", ENDLESS_ZONE.replace("\n", "\r\n"))
    assert ical.read_entries(hostile, NOW) == [["2027-04-01T12:00:00", "2027-04-01T13:00:00", "Lunch"]]


def test_properties_that_are_not_used_are_not_parsed() -> None:
    """A line of 240,000 empty categories took a second; the invalid one shows what is parsed."""
    content = ics(day("20270401", "Lunch", "CATEGORIES:" + "," * 240_000))
    unused = content.replace("BEGIN:VEVENT", "X-INVALID;PARAMETER:1\r\nBEGIN:VEVENT")
    assert ical.read_entries(unused, NOW) == [["2027-04-01", "2027-04-02", "Lunch"]]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "not an iCalendar file"),
        ("BEGIN:VCALENDAR", "not an iCalendar file"),
        ("BEGIN:VEVENT\r\n" * 2000, "not an iCalendar file"),
        (ics("SUMMARY:No start"), "no usable start"),
        (ics("DTSTART:2027|SUMMARY:Broken"), "no usable start"),
        (ics(day("20270101", "Flood", "RRULE:FREQ=SECONDLY")), "Flood” has an unusable rule. FREQ must be one of"),
        (ics("DTSTART:20270101T090000Z|DTEND:20260101T090000Z|SUMMARY:Back"), "no usable start"),
        (ics("DTSTART:20270101T090000Z|DURATION:P9999999D"), "no usable start"),
        (
            ics(*(day(f"2028{n % 12 + 1:02}{n % 28 + 1:02}", str(n)) for n in range(1001))),
            "more than 1,000 entries",
        ),
        (ics(day("20200101", "Daily", "RRULE:FREQ=DAILY")), "more than 1,000 entries"),
        ("x" * (ical.MAX_BYTES + 1), "larger than 256 KB"),
        # Their occurrences are over: none becomes an entry.
        (ics(*[day("19700101", "Past", "RRULE:FREQ=DAILY;COUNT=19000")] * 40), "too many occurrences"),
        # A daily rule prepares each day apart, which costs more than a yearly one.
        (
            ics(*[day("19700101", "Never", "RRULE:FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30")] * 100),
            "too many occurrences",
        ),
        # Each of them is compared with each of the others.
        (
            ics(
                *[day("20270101", "Moved", "UID:1", "RECURRENCE-ID:20270105", "RRULE:FREQ=YEARLY;COUNT=1")] * 1500
            ),
            "too many occurrences",
        ),
        (ics(day("20270101", "Lines", *["SUMMARY:1"] * ical.MAX_LINES)), "more than 20,000 lines"),
    ],
    ids=range(15),
)
def test_unusable_file_says_why(content: str, problem: str) -> None:
    with pytest.raises(ical.UnreadableCalendar) as refused:
        ical.read_entries(content, NOW)
    assert problem in str(refused.value)


# --- Times -------------------------------------------------------------------------------------------------------


def timing(found: list[list[str]], zone: str = NEW_YORK, **fields: Any) -> Timing:
    fields.setdefault("anchor", datetime(2027, 1, 1, 14, tzinfo=UTC))
    return Timing(
        zone=zone, exclusions=resolve_exclusions(found, ["Days"], lambda at: localize(at, zone)), **fields
    )


WEEK = [["2027-03-13", "2027-03-15", "Weekend"], ["2027-03-16", "2027-03-17", "Tuesday"]]


@pytest.mark.parametrize(
    "fields",
    [{"cron": "0 9 * * *"}, {"every": 1, "unit": "day"}, {"rrule": "FREQ=DAILY"}],
    ids=["cron", "every", "rrule"],
)
def test_excluded_days_are_left_out_across_a_clock_change(fields: dict[str, Any]) -> None:
    found = preview(timing(WEEK, **fields), datetime(2027, 3, 12, 12, tzinfo=UTC), 4)
    assert [f"{at.astimezone(ZoneInfo(NEW_YORK)):%d %H:%M}" for at in found] == [
        "12 09:00", "15 09:00", "17 09:00", "18 09:00",
    ]  # fmt: skip


def test_interval_is_excluded_up_to_its_end() -> None:
    between = [["2027-03-01T12:00:00+00:00", "2027-03-01T13:00:00+00:00", "Maintenance"]]
    found = preview(timing(between, "UTC", every=30, unit="minute"), datetime(2027, 3, 1, 11, 15, tzinfo=UTC), 3)
    assert [f"{at:%H:%M}" for at in found] == ["11:30", "13:00", "13:30"]


@pytest.mark.parametrize(
    "fields", [{"cron": "*/10 * * * *"}, {"every": 10, "unit": "minute"}, {"rrule": "FREQ=DAILY"}]
)
def test_missed_occurrences_do_not_count_excluded_ones(fields: dict[str, Any]) -> None:
    when = timing(WEEK, **fields)
    first = preview(when, datetime(2027, 3, 12, 12, tzinfo=UTC), 1)[0]
    until = datetime(2027, 3, 20, tzinfo=UTC)
    stretch = measure_stretch(when, first, 1, until, lambda at: at)
    expected = [at for at in preview(when, first - timedelta(seconds=1), 2000) if at < until]
    assert (stretch.count, stretch.last) == (len(expected), expected[-1])
    assert stretch.following is not None
    assert stretch.following >= until


def test_limits_count_only_what_runs() -> None:
    when = timing(WEEK, cron="0 9 * * *", max_occurrences=3, ends_at=datetime(2027, 3, 16, 20, tzinfo=UTC))
    assert len(preview(when, datetime(2027, 3, 12, 12, tzinfo=UTC))) == 2


# --- Schedules ---------------------------------------------------------------------------------------------------


@pytest.fixture
def api(world: World) -> Api:
    world.travel_to("2027-03-01 16:00")
    return Api(key=factories.api_key(world.organization))


@pytest.fixture
def holidays(world: World, api: Api) -> dict[str, Any]:
    answer = api.post(
        "exclusion-calendars/", {"name": "Holidays", "content": ics(day("20270302"), day("20270303"))}
    )
    assert answer.status_code == 201, answer.content
    return answer.json()


def body(**fields: Any) -> dict[str, Any]:
    return {
        "name": "Visit",
        "kind": "http",
        "payload": {"url": "https://example.com/hook"},
        "cron": "0 10 * * *",
        **fields,
    }


def work(world: World) -> None:
    """The worker of imports works off its queue."""
    for message in world.messages("dispatch-import-queue"):
        message.deliver()


def test_schedule_does_not_run_on_excluded_days(world: World, api: Api, holidays: dict[str, Any]) -> None:
    made = api.post("schedules/", body(exclude_calendars=[holidays["id"]])).json()
    assert made["when"].endswith(", except Holidays")
    days = ["2027-03-01", "2027-03-04", "2027-03-05"]
    assert [one["local"][:10] for one in made["next"]][:3] == days
    shown = api.get(f"schedules/{made['id']}/occurrences/?days=5").json()["occurrences"]
    assert [one["local"][:10] for one in shown][:3] == days
    preview_body = {"cron": "0 10 * * *", "exclude_calendars": [holidays["id"]]}
    assert [one["local"][:10] for one in api.post("schedules/preview/", preview_body).json()["next"]][:3] == days
    world.go_until("2027-03-05 18:00", 3600)
    schedule = Schedule.objects.get()
    assert [f"{run.trigger_at:%d}" for run in world.runs(schedule)] == ["01", "04", "05", "06"]
    assert world.statuses(schedule)[:3] == ["succeeded"] * 3


def test_change_of_a_calendar_moves_the_next_runs(world: World, api: Api, holidays: dict[str, Any]) -> None:
    made = api.post("schedules/", body(exclude_calendars=[holidays["id"]], starts_at="2027-03-02T00:00:00")).json()
    other = api.post("schedules/", body(name="Other", starts_at="2027-03-02T00:00:00")).json()
    address = f"exclusion-calendars/{holidays['id']}/"
    for content, expected in ((ics(day("20270304")), "2027-03-02"), (ics(day("20270302")), "2027-03-03")):
        assert api.patch(address, {"content": content}).status_code == 200
        work(world)
        assert api.get(f"schedules/{made['id']}/").json()["next_at"].startswith(expected)
    assert api.get(f"schedules/{other['id']}/").json()["next_at"].startswith("2027-03-02")
    run = world.run(Schedule.objects.get(pk=made["id"]))
    assert f"{run.trigger_at:%d} {run.due_at:%d}" == "03 03"
    row = ExclusionCalendar.objects.get()
    assert row.applied_version == row.version == 3
    assert Event.objects.filter(kind="schedule.moved", subject_id=made["id"]).count() == 2


def test_run_whose_day_was_excluded_too_late_is_skipped(world: World, api: Api, holidays: dict[str, Any]) -> None:
    """The calendar changed, and the task that moves the next runs was lost."""
    api.post("schedules/", body(exclude_calendars=[holidays["id"]]))
    api.patch(f"exclusion-calendars/{holidays['id']}/", {"content": ics(day("20270301"))})
    world.messages("dispatch-import-queue")
    world.travel(3601)
    world.go()
    schedule = Schedule.objects.get()
    assert world.statuses(schedule) == ["skipped", "scheduled"]
    assert world.run(schedule).error == "Its time is excluded by a calendar."
    assert world.note.done == []
    calendars.enqueue_due()  # the lost task is enqueued again
    work(world)
    assert ExclusionCalendar.objects.get().applied_version == 2


def test_manual_runs_and_retries_are_not_excluded() -> None:
    when = timing([["2027-03-01", "2027-03-09", "Days"]], cron="0 9 * * *")
    policy = due_rules.Policy("last", 300, "allow")
    at = datetime(2027, 3, 2, 14, tzinfo=UTC)
    for due in (due_rules.Due(at, None), due_rules.Due(at, 1, is_retry=True)):
        assert due_rules.plan_due_run(when, policy, due, at, has_open=False).verdict is due_rules.Verdict.RUN


def test_whole_days_are_those_of_the_schedules_zone(world: World, api: Api, holidays: dict[str, Any]) -> None:
    late = body(cron="30 23 * * *", time_zone="Pacific/Auckland", exclude_calendars=[holidays["id"]])
    found = api.post("schedules/", late).json()["next"]
    assert [one["local"] for one in found][:2] == ["2027-03-04T23:30:00+13:00", "2027-03-05T23:30:00+13:00"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"exclude_calendars": [10**6]}, "exclude_calendars"),
        ({"exclude_calendars": ["x"]}, "exclude_calendars.0"),
        ({"cron": None, "trigger_at": "2027-03-02T10:00:00", "exclude_calendars": [1]}, "exclude_calendars"),
    ],
)
def test_wrong_calendars_are_rejected(
    world: World, api: Api, holidays: dict[str, Any], fields: dict[str, Any], field: str
) -> None:
    fields = {name: [holidays["id"]] if value == [1] else value for name, value in fields.items()}
    answer = api.post("schedules/", {name: value for name, value in body(**fields).items() if value is not None})
    assert answer.status_code == 400, answer.content
    assert field in [error["field"] for error in answer.json()["errors"]]


def test_calendars_of_another_organization_are_unknown(world: World, api: Api) -> None:
    other = factories.organization("Other")
    theirs = calendars.create_calendar(other.pk, "Theirs", content=ics(day("20270302")), actor=ANA)
    assert api.post("schedules/", body(exclude_calendars=[theirs.pk])).status_code == 400
    assert api.get(f"exclusion-calendars/{theirs.pk}/").status_code == 404
    assert api.delete(f"exclusion-calendars/{theirs.pk}/").status_code == 404


def test_calendar_in_use_is_not_deleted(world: World, api: Api, holidays: dict[str, Any]) -> None:
    address = f"exclusion-calendars/{holidays['id']}/"
    made = api.post("schedules/", body(exclude_calendars=[holidays["id"]])).json()
    refused = api.delete(address)
    assert (refused.status_code, refused.json()["errors"][0]["code"]) == (409, "in_use")
    changed = api.patch(f"schedules/{made['id']}/", {"exclude_calendars": []}).json()
    assert (changed["exclude_calendars"], changed["next"][1]["local"][:10]) == (None, "2027-03-02")
    assert api.delete(address).status_code == 204
    kinds = Event.objects.filter(subject_type="exclusioncalendar").order_by("id").values_list("kind", flat=True)
    assert list(kinds) == ["exclusioncalendar.created", "exclusioncalendar.deleted"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "url"),
        ({"url": "https://example.com/a.ics", "content": ics(day("20270302"))}, "url"),
        ({"url": "ftp://example.com/a.ics"}, "url"),
        ({"content": "nonsense"}, "content"),
    ],
)
def test_wrong_input_of_a_calendar_names_its_field(api: Api, given: dict[str, Any], field: str) -> None:
    answer = api.post("exclusion-calendars/", {"name": "Holidays", **given})
    assert answer.status_code == 400, answer.content
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_names_of_calendars_are_unique(api: Api, holidays: dict[str, Any]) -> None:
    answer = api.post("exclusion-calendars/", {"name": "Holidays", "content": ics(day("20270302"))})
    assert (answer.status_code, answer.json()["errors"][0]["code"]) == (409, "name_taken")


# --- By URL ------------------------------------------------------------------------------------------------------


GOOD = ics(day("20270302"))


@pytest.fixture
def publisher() -> Iterator[Receiver]:
    """A server that publishes a calendar."""
    found = Receiver()
    yield found
    found.close()


def publish(publisher: Receiver, content: str = GOOD, status: int = 200) -> None:
    """Set what the next request is answered."""
    publisher.answers.append((status, {"Content-Type": "text/calendar"}, content.encode()))


def test_calendar_is_read_from_its_url_once_a_day(world: World, api: Api, publisher: Receiver) -> None:
    publish(publisher)
    made = api.post("exclusion-calendars/", {"name": "Public", "url": publisher.url}).json()
    assert (made["entry_count"], made["refreshed_at"]) == (0, None)
    work(world)
    address = f"exclusion-calendars/{made['id']}/"
    assert api.get(address).json()["entries"] == [{"start": "2027-03-02", "end": "2027-03-03", "name": "Holiday"}]
    publish(publisher, ics(day("20270302"), day("20270305")))
    calendars.enqueue_due()
    work(world)
    assert api.get(address).json()["entry_count"] == 1
    world.travel(86_401)
    calendars.enqueue_due()
    work(world)
    assert api.get(address).json()["entry_count"] == 2


@pytest.mark.parametrize(
    ("status", "content", "error"),
    [
        (500, "", "The server answered HTTP 500."),
        (200, "<html>Sign in</html>", "This is not an iCalendar file"),
        (200, "x" * (ical.MAX_BYTES + 1), "larger than 256 KB"),
    ],
)
def test_failed_refresh_keeps_the_last_good_copy(
    world: World, api: Api, publisher: Receiver, status: int, content: str, error: str
) -> None:
    publish(publisher)
    made = api.post("exclusion-calendars/", {"name": "Public", "url": publisher.url}).json()
    work(world)
    address = f"exclusion-calendars/{made['id']}/"
    good = api.get(address).json()
    publish(publisher, content, status)
    assert api.post(f"{address}refresh/").status_code == 202
    work(world)
    bad = api.get(address).json()
    assert error in bad["last_error"]
    assert (bad["entries"], bad["refreshed_at"]) == (good["entries"], good["refreshed_at"])
    assert Event.objects.filter(kind="exclusioncalendar.refresh_failed").count() == 1
    publish(publisher)
    world.travel(3601)
    calendars.enqueue_due()
    work(world)
    assert api.get(address).json()["last_error"] == ""


def test_private_addresses_are_not_read(world: World, api: Api, publisher: Receiver, settings: Any) -> None:
    settings.HTTP_ALLOWED_NETWORKS = []
    port = publisher.url.rsplit(":", 1)[1].split("/")[0]
    calendars.create_calendar(world.organization.pk, "Private", url=f"http://localhost:{port}/a.ics", actor=ANA)
    work(world)
    assert "is a private or loopback address" in ExclusionCalendar.objects.get().last_error
    assert publisher.came == []


# --- Pages -------------------------------------------------------------------------------------------------------


def test_the_form_offers_the_calendars(world: World, api: Api, holidays: dict[str, Any]) -> None:
    browser = factories.browser(factories.dispatcher(world.organization, "Dora"))
    page = browser.get("/schedules/new/?kind=http").content.decode()
    assert "Except on the days of" in page
    entered = {
        "kind": "http", "name": "Ping", "p-url": "https://example.com/hook", "p-method": "POST", "how": "cron",
        "cron": "0 10 * * *", "time_zone": "America/Phoenix", "exclude_calendars": [str(holidays["id"])],
    }  # fmt: skip
    assert browser.post("/schedules/new/", entered).status_code == 302
    schedule = Schedule.objects.get()
    assert schedule.exclude_calendars == [holidays["id"]]
    edited = browser.get(f"/schedules/{schedule.pk}/edit/").content.decode()
    assert f'value="{holidays["id"]}" checked' in edited
    saved = {**entered, "exclude_calendars": [], "version": "1"}
    assert browser.post(f"/schedules/{schedule.pk}/edit/", saved).status_code == 302
    schedule.refresh_from_db()
    assert schedule.exclude_calendars is None
    foreign = {**entered, "exclude_calendars": ["1000000"]}
    assert browser.post("/schedules/new/", foreign).status_code == 422


def test_the_month_leaves_out_excluded_days(world: World, api: Api, holidays: dict[str, Any]) -> None:
    api.post("schedules/", body(exclude_calendars=[holidays["id"]]))
    month = calendar.month_of(world.organization, "2027-03")
    shown_days = {one.date.isoformat() for week in month.weeks for one in week if one.coming}
    assert {"2027-03-02", "2027-03-03"} & shown_days == set()
    assert {"2027-03-01", "2027-03-04", "2027-03-31"} <= shown_days
    shown = api.get("schedules/upcoming/?days=31").json()["occurrences"]
    days = {one["local"][:10] for one in shown}
    assert {"2027-03-02", "2027-03-03"} & days == set()
    assert len(days) == 29


def test_admins_manage_calendars(world: World, api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    read = Mock(wraps=ical.read_entries)
    monkeypatch.setattr(ical, "read_entries", read)
    admin = factories.browser(factories.admin(world.organization))
    address = "/admin/schedules/exclusioncalendar/"
    form = admin.get(f"{address}add/").context["adminform"].form
    owner = form.initial.get("organization") or form["organization"].value()
    upload = SimpleUploadedFile("days.ics", ics(day("20270302")).encode(), "text/calendar")
    added = admin.post(f"{address}add/", {"name": "Days", "organization": owner, "file": upload})
    assert added.status_code == 302, added.context["errors"]
    row = ExclusionCalendar.objects.get()
    assert row.entries == [["2027-03-02", "2027-03-03", "Holiday"]]
    assert read.call_count == 1, "reading a file costs up to a second"
    page = admin.get(f"{address}{row.pk}/change/").content.decode()
    assert "Holiday: 2027-03-02 – 2027-03-03" in page
    bad = SimpleUploadedFile("days.ics", b"nonsense", "text/calendar")
    answer = admin.post(f"{address}add/", {"name": "Bad", "organization": owner, "file": bad})
    assert "not an iCalendar file" in answer.content.decode()
    assert admin.post(f"{address}{row.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not ExclusionCalendar.objects.exists()
    dispatcher = factories.browser(factories.dispatcher(world.organization, "Dora"))
    assert dispatcher.get(address).status_code in (302, 403)


def test_calendars_cost_one_statement_per_batch(
    world: World, api: Api, holidays: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        world.schedule(f"S{number}", cron="0 10 * * *", exclude_calendars=[holidays["id"]])
    world.travel(3601)
    statements: list[str] = []
    fetch = exclusion_cache.fetch_all
    monkeypatch.setattr(
        exclusion_cache, "fetch_all", lambda sql, params: statements.append(sql) or fetch(sql, params)
    )
    claimed = executor.claim_due_runs(ALL)
    assert claimed.taken == 5
    assert statements == [exclusion_cache.VERSIONS]


def test_a_held_calendar_delays_no_other(world: World) -> None:
    past = clock.now() - timedelta(days=1)
    for name in ("Held", "Free"):
        ExclusionCalendar.objects.create(organization=world.organization, name=name, content=GOOD, refresh_at=past)
    with transaction.atomic():
        ExclusionCalendar.objects.select_for_update(no_key=True).get(name="Held")
        Elsewhere(calendars.enqueue_due).finish()
    waiting = dict(ExclusionCalendar.objects.values_list("name", "refresh_at"))
    assert waiting["Held"] == past
    assert waiting["Free"] > past
