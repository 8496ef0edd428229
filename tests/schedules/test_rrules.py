"""Recurrence rules: times, clock changes, limits, bounded search, words, and the API."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from dateutil.rrule import rrulestr
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.core import clock
from dispatch.schedules.models import Schedule
from dispatch.schedules.rules import rrules
from dispatch.schedules.rules.descriptions import describe
from dispatch.schedules.rules.recurrence import Timing, is_moved, localize, next_after, preview
from dispatch.schedules.rules.stretches import MAX_COMPUTED, measure_stretch
from tests.api.client import Api
from tests.harness.schedules import World
from tests.support import factories

BACKEND = "django.contrib.auth.backends.ModelBackend"
NEW_YORK = "America/New_York"  # forward on March 8, 2026 at 02:00, back on November 1, 2026 at 02:00


def wall(text: str) -> datetime:
    return datetime.fromisoformat(text)


def at(text: str, zone: str = NEW_YORK) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))


def rule(text: str, start: datetime | None = None, zone: str = NEW_YORK, **more: Any) -> Timing:
    return Timing(zone=zone, rrule=rrules.read_rule(text).text, anchor=start or at("2026-01-05 09:00"), **more)


def local(found: list[datetime], zone: str = NEW_YORK) -> list[str]:
    return [f"{one.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M %Z}" for one in found]


# --- Times -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FREQ=MONTHLY;BYDAY=-1FR", ["2026-01-30", "2026-02-27", "2026-03-27"]),
        ("RRULE:FREQ=WEEKLY;INTERVAL=2;BYDAY=MO,FR", ["2026-01-05", "2026-01-09", "2026-01-19"]),
        ("FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", ["2026-01-30", "2026-02-27", "2026-03-31"]),
        ("FREQ=MONTHLY;BYMONTHDAY=31", ["2026-01-31", "2026-03-31", "2026-05-31"]),
        ("FREQ=MONTHLY;BYMONTHDAY=-1", ["2026-01-31", "2026-02-28", "2026-03-31"]),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", ["2026-11-26", "2027-11-25", "2028-11-23"]),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", ["2026-05-11", "2027-05-17", "2028-05-15"]),
        ("FREQ=DAILY;INTERVAL=10;BYMONTH=1", ["2026-01-05", "2026-01-15", "2026-01-25"]),
        ("FREQ=YEARLY", ["2026-01-05", "2027-01-05", "2028-01-05"]),
    ],
)
def test_rule_has_the_times_of_the_standard(text: str, expected: list[str]) -> None:
    found = preview(rule(text), at("2026-01-05 08:59"), 3)
    assert local(found) == [f"{one} 09:00 {'EDT' if '03-09' < one[5:] < '11-01' else 'EST'}" for one in expected]


_DAYS = st.sampled_from(rrules.WEEKDAYS)


@st.composite
def rules(draw: st.DrawFn) -> str:
    """Return a rule that has times: dateutil searches for the times of others until the year 9999."""
    frequency = draw(st.sampled_from(rrules.FREQUENCIES))
    parts = {"FREQ": frequency}
    if draw(st.booleans()):
        parts["INTERVAL"] = str(draw(st.integers(2, 5)))
    if draw(st.booleans()):
        days = draw(st.lists(_DAYS, min_size=1, max_size=3, unique=True))
        number = draw(st.sampled_from(["", "1", "-1"])) if frequency == "MONTHLY" else ""
        parts["BYDAY"] = ",".join(f"{number}{day}" for day in days)
    elif frequency in ("MONTHLY", "YEARLY") and draw(st.booleans()):
        parts["BYMONTHDAY"] = draw(st.sampled_from(["1", "15", "-1", "2,28"]))
    if draw(st.booleans()) and not (frequency == "MONTHLY" and "INTERVAL" in parts):
        parts["BYMONTH"] = draw(st.sampled_from(["2", "1,7", "3,6,9,12"]))
    if draw(st.booleans()):
        parts["BYHOUR"] = draw(st.sampled_from(["8", "8,17"]))
    return ";".join(f"{name}={value}" for name, value in parts.items())


@settings(max_examples=40, deadline=None)
@given(
    text=rules(), days=st.integers(0, 4000), start=st.datetimes(wall("2019-12-25 00:00"), wall("2021-03-02 00:00"))
)
def test_search_that_begins_late_finds_what_a_search_from_the_start_finds(
    text: str, days: int, start: datetime
) -> None:
    start = start.replace(microsecond=0, day=min(start.day, 28))
    after = start + timedelta(days=days)
    whole = rrulestr(text, dtstart=start)
    expected = list(whole.xafter(after, count=3))
    found = islice((one for one in rrules.wall_times(rrules.read_rule(text).text, start, after) if one > after), 3)
    assert list(found) == expected


def test_seconds_of_the_creation_are_no_part_of_a_rule() -> None:
    """A schedule without a start is anchored at the moment of its creation."""
    created = at("2026-01-05 08:59:58.123456")
    for text in ("FREQ=DAILY;BYHOUR=9;BYMINUTE=0", "FREQ=MONTHLY;BYDAY=MO,TU;BYSETPOS=2;BYHOUR=9;BYMINUTE=0"):
        timing = rule(text, created)
        assert preview(timing, created, 1)[0].second == 0
        assert ":58" not in describe(timing)
    chosen = at("2026-01-05 09:00:30")
    assert preview(rule("FREQ=DAILY", chosen, starts_at=chosen), created, 1) == [chosen]


# --- Clock changes -----------------------------------------------------------------------------------------------


def test_a_time_in_the_gap_moves_and_keeps_the_wall_clock_afterwards() -> None:
    timing = rule("FREQ=DAILY;BYHOUR=2;BYMINUTE=15,45")
    found = preview(timing, at("2026-03-07 12:00"), 3)
    assert local(found) == ["2026-03-08 03:00 EDT", "2026-03-09 02:15 EDT", "2026-03-09 02:45 EDT"]
    assert [is_moved(one, timing) for one in found] == [True, False, False]


def test_a_time_that_comes_twice_counts_once() -> None:
    found = preview(rule("FREQ=DAILY;BYHOUR=1;BYMINUTE=30"), at("2026-10-31 12:00"), 2)
    assert local(found) == ["2026-11-01 01:30 EDT", "2026-11-02 01:30 EST"]


@pytest.mark.parametrize("zone", ["America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "America/Havana"])
def test_rule_and_cron_agree_over_a_year_of_clock_changes(zone: str) -> None:
    cron = Timing(zone=zone, cron="30 0,1,2 * * *")
    text = rule("FREQ=DAILY;BYHOUR=0,1,2;BYMINUTE=30", start=at("2025-12-31 00:00", zone), zone=zone)
    now = at("2026-01-01 12:00", zone)
    assert preview(text, now, 1100) == preview(cron, now, 1100)


def test_wall_clock_day_at_the_date_line() -> None:
    """Samoa had no December 30, 2011: its runs of that day fall on the first moment of the next."""
    found = preview(rule("FREQ=DAILY;BYHOUR=9", at("2011-12-28 09:00", "Pacific/Apia"), "Pacific/Apia"),
                    at("2011-12-29 12:00", "Pacific/Apia"), 2)  # fmt: skip
    days = [one.astimezone(ZoneInfo("Pacific/Apia")).date() for one in found]
    assert days == [date(2011, 12, 31), date(2011, 12, 31)]
    assert found == [localize(wall("2011-12-30 09:00"), "Pacific/Apia").astimezone(UTC),
                     localize(wall("2011-12-31 09:00"), "Pacific/Apia").astimezone(UTC)]  # fmt: skip


# --- Limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "FREQ=DAILY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=DAILY;INTERVAL=7;BYDAY=TU",
        "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30",
        "FREQ=YEARLY;BYYEARDAY=1;BYMONTH=2",
        "FREQ=YEARLY;BYMONTH=2;BYDAY=MO;BYSETPOS=366",
        "FREQ=YEARLY;BYDAY=1MO;BYSETPOS=2",
    ],
)
def test_rule_without_times_ends_its_search(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    contains = rrules._Counted.__contains__
    monkeypatch.setattr(
        rrules._Counted, "__contains__", lambda self, value: looked.append(1) or contains(self, value)
    )
    assert next_after(rule(text), at("2026-01-06 00:00")) is None
    assert 0 < len(looked) <= rrules.MAX_DAYS + 1


def test_leap_days_are_found() -> None:
    for text in ("FREQ=DAILY;BYMONTH=2;BYMONTHDAY=29", "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=29"):
        found = preview(rule(text), at("2095-01-06 00:00"), 2)
        assert local(found) == ["2096-02-29 09:00 EST", "2104-02-29 09:00 EST"]


def test_times_before_the_search_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule with 1,440 times a day has a million of them in the two years before."""
    made: list[Any] = []

    class Counted(datetime):
        @classmethod
        def combine(cls, *args: Any) -> datetime:
            made.append(args)
            return datetime.combine(*args)

    hours, minutes = (",".join(map(str, range(size))) for size in (24, 60))
    days = ",".join(map(str, range(1, 32)))
    timing = rule(f"FREQ=YEARLY;BYMONTHDAY={days};BYHOUR={hours};BYMINUTE={minutes}", at("2020-01-01 09:30"))
    monkeypatch.setattr(rrules, "datetime", Counted)
    found = next_after(timing, at("2026-12-24 10:00"))
    assert found == at("2026-12-24 10:01")
    assert len(made) < 5 * 1440


def test_long_stretch_of_a_rule_is_measured_within_the_limit() -> None:
    minutes = ",".join(map(str, range(60)))
    timing = rule(f"FREQ=DAILY;BYHOUR=0,1,2,3,4,5,6,7,8,9,10,11;BYMINUTE={minutes}")
    first = next_after(timing, at("2026-01-06 00:00"))
    assert first is not None
    stretch = measure_stretch(timing, first, 1, first + timedelta(days=400), lambda one: one)
    assert stretch.count == MAX_COMPUTED + 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("FREQ=SECONDLY", "FREQ must be one of"),
        ("FREQ=MINUTELY;INTERVAL=5", "FREQ must be one of"),
        ("FREQ=HOURLY", "FREQ must be one of"),
        ("BYDAY=MO", "FREQ is missing"),
        ("FREQ=DAILY;BYSECOND=1,2", "BYSECOND is not supported."),
        ("FREQ=DAILY;FREQ=DAILY", "FREQ is given twice."),
        ("FREQ=DAILY;INTERVAL=0", "INTERVAL must be from 1 to 1000."),
        ("FREQ=DAILY;INTERVAL=99999999999999999999", "INTERVAL must be from 1 to 1000."),
        ("FREQ=MONTHLY;BYDAY=0MO", "BYDAY must be weekdays"),
        ("FREQ=DAILY;BYDAY=1MO", "Numbered weekdays"),
        ("FREQ=YEARLY;BYDAY=1MO;BYMONTHDAY=30", "Numbered weekdays of a year"),
        ("FREQ=MONTHLY;BYDAY=MO,1MO", "Weekdays with and without a number"),
        ("FREQ=WEEKLY;BYMONTHDAY=1", "BYMONTHDAY is not allowed with FREQ=WEEKLY."),
        ("FREQ=MONTHLY;BYWEEKNO=1", "BYWEEKNO is not allowed with FREQ=MONTHLY."),
        ("FREQ=MONTHLY;BYMONTHDAY=0", "BYMONTHDAY must be from 1 to 31, or from -31 to -1."),
        ("FREQ=MONTHLY;BYMONTHDAY=²", "BYMONTHDAY must be"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20270101", "either COUNT or UNTIL"),
        ("FREQ=DAILY;UNTIL=20271301", "UNTIL must be"),
        ("FREQ=DAILY;BYSETPOS=1", "BYSETPOS chooses"),
        ("FREQ=DAILY;BYHOUR=" + ",".join(["1"] * 101), "at most 100 values"),
        ("FREQ=DAILY;", None),
        ("FREQ=DAILY;;BYHOUR=1", "is not a part of a rule"),
        ("every day", "is not a part of a rule"),
        ("FREQ=DAILY" + ";" * 500, "at most 500 characters"),
    ],
)
def test_rule_that_cannot_be_used_says_why(text: str, problem: str | None) -> None:
    if problem is None:
        assert rrules.read_rule(text).text == "FREQ=DAILY"
        return
    with pytest.raises(rrules.InvalidRule) as refused:
        rrules.read_rule(text)
    assert problem in str(refused.value)


# --- Words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FREQ=DAILY", "Every day at 09:00"),
        ("FREQ=WEEKLY;INTERVAL=2", "Every 2 weeks on Monday at 09:00"),
        ("FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR;BYHOUR=8,17", "Every week on weekdays at 08:00 and 17:00"),
        ("FREQ=MONTHLY;BYDAY=-1FR", "Every month on the last Friday at 09:00"),
        ("FREQ=MONTHLY;BYMONTHDAY=1,-2", "Every month on the 1st and the 2nd to last day at 09:00"),
        ("FREQ=MONTHLY", "Every month on the 5th at 09:00"),
        ("FREQ=YEARLY", "Every year on January 5 at 09:00"),
        ("FREQ=YEARLY;BYMONTH=7", "Every year on the 5th in July at 09:00"),
        ("FREQ=YEARLY;BYMONTH=11;BYDAY=4TH", "Every year on the 4th Thursday in November at 09:00"),
        ("FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO", "Every year on Monday in week 20 at 09:00"),
        (
            "FREQ=MONTHLY;BYDAY=MO,FR;BYSETPOS=-1",
            "Every month on Monday and Friday, only the last of these at 09:00",
        ),
        ("FREQ=MONTHLY;BYDAY=FR;BYMONTHDAY=13", "Every month on Friday that are also the 13th at 09:00"),
        ("FREQ=DAILY;BYMINUTE=0,10,20,30,40,50;BYHOUR=8,9", "Every day, 12 times a day"),
    ],
)
def test_rule_is_described_in_words(text: str, words: str) -> None:
    assert describe(rule(text)) == f"{words} ({NEW_YORK})"


# --- The API and the page ----------------------------------------------------------------------------------------


@pytest.fixture
def api(world: World) -> Api:
    world.travel_to("2027-03-01 16:00")  # 09:00 in Phoenix
    return Api(key=factories.api_key(world.organization))


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "name": "Visit",
        "kind": "http",
        "payload": {"url": "https://example.com/hook"},
        "rrule": text,
        **fields,
    }


def test_schedule_by_rule_runs_and_its_limits_are_kept(world: World, api: Api) -> None:
    answer = api.post("schedules/", body("freq=daily;byhour=9;byminute=30;count=2"))
    assert answer.status_code == 201, answer.content
    found = answer.json()
    assert (found["rrule"], found["max_occurrences"]) == ("FREQ=DAILY;BYHOUR=9;BYMINUTE=30", 2)
    assert found["when"] == "Every day at 09:30 (America/Phoenix), 2 times"
    assert found["next_at"] == "2027-03-01T16:30:00Z"
    world.go_until("2027-03-04 00:00", 3600)
    assert world.statuses(Schedule.objects.get()) == ["succeeded", "succeeded"]
    assert Schedule.objects.get().status == "ended"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"rrule": "FREQ=DAILY;COUNT=2", "max_occurrences": 3}, "rrule"),
        ({"rrule": "FREQ=DAILY;UNTIL=20280101", "ends_at": "2028-01-01T00:00:00Z"}, "rrule"),
        ({"rrule": "FREQ=HOURLY"}, "rrule"),
        ({"rrule": "FREQ=MONTHLY;BYMONTH=2;BYMONTHDAY=30"}, "rrule"),
        ({"rrule": "FREQ=DAILY;UNTIL=20200101"}, "rrule"),
        ({"rrule": "FREQ=DAILY", "cron": "0 9 * * *"}, "trigger_at"),
        ({"rrule": "FREQ=DAILY", "starts_at": "1920-01-01T09:00:00Z"}, "starts_at"),
    ],
)
def test_invalid_rules_are_rejected_with_their_field(api: Api, fields: dict[str, Any], field: str) -> None:
    answer = api.post("schedules/", body(**{"text": fields.pop("rrule"), **fields}))
    assert answer.status_code == 400, answer.content
    assert [error["field"] for error in answer.json()["errors"]] == [field]


def test_until_is_in_the_zone_of_the_schedule(api: Api) -> None:
    found = api.post("schedules/preview/", {"rrule": "FREQ=DAILY;BYHOUR=23;BYMINUTE=30;UNTIL=20270302"}).json()
    assert [one["local"] for one in found["next"]] == [
        "2027-03-01T23:30:00-07:00", "2027-03-02T23:30:00-07:00",
    ]  # fmt: skip


def test_changing_the_rule_keeps_the_time_of_day(world: World, api: Api) -> None:
    made = api.post("schedules/", body("FREQ=DAILY", starts_at="2027-03-02T08:15:00")).json()
    world.travel_to("2027-03-05 20:00")
    changed = api.patch(f"schedules/{made['id']}/", {"rrule": "FREQ=WEEKLY;BYDAY=WE"}).json()
    assert changed["when"] == "Every week on Wednesday at 08:15 (America/Phoenix)"
    moved = api.patch(f"schedules/{made['id']}/", {"time_zone": NEW_YORK}).json()
    assert moved["when"] == "Every week on Wednesday at 08:15 (America/New_York)"
    other = api.patch(f"schedules/{made['id']}/", {"cron": "0 9 * * *"}).json()
    assert (other["rrule"], other["cron"]) == ("", "0 9 * * *")


def test_rule_is_entered_and_kept_by_the_form(world: World, api: Api, client: Client) -> None:
    client.force_login(factories.dispatcher(world.organization, "Dora"), backend=BACKEND)
    entered = {
        "kind": "http", "name": "Ping", "p-url": "https://example.com/hook", "p-method": "POST", "how": "rrule",
        "rrule": "FREQ=MONTHLY;BYDAY=-1FR", "starts_at": "2027-03-02T09:00", "time_zone": "America/Phoenix",
    }  # fmt: skip
    shown = client.post("/schedules/preview/", entered, headers={"HX-Request": "true"}).content.decode()
    assert "Every month on the last Friday at 09:00" in shown
    assert client.post("/schedules/new/", entered).status_code == 302
    schedule = Schedule.objects.get()
    assert schedule.rrule == "FREQ=MONTHLY;BYDAY=-1FR"
    page = client.get(f"/schedules/{schedule.pk}/edit/").content.decode()
    assert 'value="FREQ=MONTHLY;BYDAY=-1FR"' in page
    answer = client.post("/schedules/preview/", {**entered, "how": "payload"}, headers={"HX-Request": "true"})
    assert answer.status_code == 200  # an unknown kind of timing is an error in words
    assert schedule.next_at == clock.now().replace(month=3, day=26, hour=16, minute=0, second=0, microsecond=0)
