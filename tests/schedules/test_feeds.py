"""The coming month in the API and the admin, and the calendar feed by a signed link."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from html import unescape
from typing import Any

import icalendar
import pytest
from django.test import Client
from hypothesis import given, settings
from hypothesis import strategies as st

from accounts.auth.throttling import parse_rate
from accounts.models import Organization
from dispatch.core.models import Event
from dispatch.schedules import calendar_feed, queries
from dispatch.schedules.models import ScheduleFeed
from dispatch.schedules.services import feeds, schedules
from tests.api.client import Api
from tests.harness.schedules import ANA, World
from tests.support import factories as make

NEW_YORK = "America/New_York"


@pytest.fixture
def api(world: World) -> Api:
    world.travel_to("2027-03-01 16:00")
    return Api(key=make.api_key(world.organization))


def lines_of(text: str) -> list[str]:
    """Undo the folding."""
    assert text.endswith("\r\n")
    assert all(len(line.encode()) <= 75 for line in text.split("\r\n"))
    return text.replace("\r\n ", "").split("\r\n")[:-1]


def values(text: str, name: str) -> list[str]:
    return [line.partition(":")[2] for line in lines_of(text) if line.startswith(f"{name}:")]


# --- The coming month
# ---------------------------------------------------------------------------------------------


def test_the_next_month_across_a_clock_change(api: Api, world: World) -> None:
    schedule = world.schedule(cron="30 2 * * *", time_zone=NEW_YORK)
    found = api.get(f"schedules/{schedule.pk}/occurrences/").json()
    assert found["is_whole"] is True
    assert len(found["occurrences"]) == 31
    by_day = {one["local"][:10]: one for one in found["occurrences"]}
    assert by_day["2027-03-13"]["local"] == "2027-03-13T02:30:00-05:00"
    assert (by_day["2027-03-14"]["local"], by_day["2027-03-14"]["moved"]) == ("2027-03-14T03:00:00-04:00", True)
    assert by_day["2027-03-15"]["local"] == "2027-03-15T02:30:00-04:00"
    assert len(api.get(f"schedules/{schedule.pk}/occurrences/?days=7").json()["occurrences"]) == 7
    for wrong in ("days=0", "days=93", "days=x", "since=1"):
        assert api.get(f"schedules/{schedule.pk}/occurrences/?{wrong}").status_code == 400


def test_a_preview_is_what_then_runs(api: Api, world: World) -> None:
    schedule = world.schedule(every=7, unit="hour", jitter_s=600, max_occurrences=5)
    found = api.get(f"schedules/{schedule.pk}/occurrences/").json()["occurrences"]
    for one in found:
        world.travel_to(datetime.fromisoformat(one["due_at"]))
        world.go()
    assert [datetime.fromisoformat(one["at"]) for one in found] == world.note.times
    assert world.again(schedule).status == "ended"
    assert api.get(f"schedules/{schedule.pk}/occurrences/").json()["occurrences"] == []


def test_all_schedules_of_the_month_in_order_without_paused_ones(api: Api, world: World) -> None:
    daily = world.schedule("daily", cron="0 9 * * *")
    weekly = world.schedule("weekly", cron="0 9 * * MON")
    paused = world.schedule("paused", cron="0 9 * * *")
    schedules.pause_schedule(paused.pk, actor=ANA)
    found = api.get("schedules/upcoming/?days=8").json()
    assert found["is_whole"] is True
    assert [one["at"] for one in found["occurrences"]] == sorted(one["at"] for one in found["occurrences"])
    names = [one["schedule_name"] for one in found["occurrences"]]
    assert (names.count("daily"), names.count("weekly"), len(names)) == (8, 1, 9)
    assert {one["schedule"] for one in found["occurrences"]} == {daily.pk, weekly.pk}


def test_a_frequent_schedule_leaves_room_for_others(
    api: Api, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_EACH", 3)
    world.schedule("frequent", every=10, unit="second")
    world.schedule("daily", cron="0 9 * * *")
    found = api.get("schedules/upcoming/?days=2").json()
    names = [one["schedule_name"] for one in found["occurrences"]]
    assert (names.count("frequent"), names.count("daily"), found["is_whole"]) == (3, 2, False)
    monkeypatch.setattr(queries, "MAX_OCCURRENCES", 4)
    cut = api.get("schedules/upcoming/?days=2").json()
    assert (len(cut["occurrences"]), cut["is_whole"]) == (4, False)


def test_the_admin_shows_the_next_month(world: World) -> None:
    world.travel_to("2027-03-01 16:00")
    admin = make.browser(make.admin(world.organization))
    schedule = world.schedule(cron="30 2 * * *", time_zone=NEW_YORK)
    page = unescape(admin.get(f"/admin/schedules/schedule/{schedule.pk}/change/").content.decode())
    assert "Sun, Mar 14, 2027, 03:00 EDT, moved: clocks go forward" in page
    assert "Wed, Mar 31, 2027, 02:30 EDT" in page


# --- The feed
# -----------------------------------------------------------------------------------------------------


def made_feed(api: Api) -> dict[str, Any]:
    answer = api.post("schedule-feeds/", {"name": "Office"})
    assert answer.status_code == 201, answer.content
    return answer.json()


def path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def test_the_feed_has_the_coming_runs(api: Api, world: World, client: Client) -> None:
    schedule = world.schedule("Visit; Dana, \n 2nd", cron="30 2 * * *", time_zone=NEW_YORK, jitter_s=600)
    make.organization("Other")
    answer = client.get(path_of(made_feed(api)["url"]))
    assert (answer.status_code, answer["Content-Type"]) == (200, "text/calendar; charset=utf-8")
    text = answer.content.decode()
    starts = [datetime.strptime(at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC) for at in values(text, "DTSTART")]
    coming = queries.coming_of_organization(world.organization, world.at("2027-04-01 16:00")).occurrences
    assert starts == [schedule.due_at(at).replace(microsecond=0) for at, _ in coming]
    assert len(starts) == len(set(values(text, "UID"))) == 31
    assert set(values(text, "SUMMARY")) == {"Visit\\; Dana\\, \\n 2nd"}
    assert "example.com" not in text
    assert "no-cache" in answer["Cache-Control"]


def test_the_feed_is_in_the_language_of_the_organization(
    api: Api, world: World, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "MAX_OCCURRENCES", 2)
    Organization.objects.update(language="es")
    world.schedule(kind="message", cron="30 2 * * *")
    text = client.get(path_of(made_feed(api)["url"])).content.decode()
    assert values(text, "X-WR-CALNAME") == ["Copper State HVAC: programaciones"]
    assert values(text, "X-WR-CALDESC") == ["Las próximas 2 ejecuciones. Hay más."]
    when = "Según la expresión cron 30 2 * * * (America/Phoenix)"
    assert set(values(text, "DESCRIPTION")) == {f"Enviar un mensaje a un endpoint. {when}"}


def test_a_feed_ends_when_it_is_deleted(api: Api, world: World, client: Client) -> None:
    feed = made_feed(api)
    assert client.get(path_of(feed["url"])).status_code == 200
    assert client.post(path_of(feed["url"])).status_code == 405
    assert [one["id"] for one in api.get("schedule-feeds/").json()["results"]] == [feed["id"]]
    assert api.delete(f"schedule-feeds/{feed['id']}/").status_code == 204
    assert client.get(path_of(feed["url"])).status_code == 404
    kinds = Event.objects.filter(subject_type="schedulefeed").order_by("id").values_list("kind", flat=True)
    assert list(kinds) == ["schedulefeed.created", "schedulefeed.revoked"]


def test_a_guessed_or_foreign_link_is_no_feed(api: Api, world: World, client: Client) -> None:
    feed = made_feed(api)
    token = re.search(r"/calendars/(.+)\.ics$", feed["url"])[1]  # type: ignore[index]
    pk, _, signature = token.partition(".")
    other = ScheduleFeed.objects.create(organization=make.organization("Other"), name="x")
    for wrong in (f"{other.pk}.{signature}", pk, f"{pk}.x", f"x{token}"):
        assert client.get(f"/calendars/{wrong}.ics").status_code == 404
    world.organization.is_active = False
    world.organization.save()
    assert client.get(path_of(feed["url"])).status_code == 404


def test_a_feed_that_is_polled_too_often_is_refused(
    api: Api, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calendar_feed, "RATE", parse_rate("2/day"))
    path = path_of(made_feed(api)["url"])
    answers = [client.get(path) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert int(answers[-1]["Retry-After"]) > 0


def test_admins_create_and_revoke_feeds(world: World) -> None:
    admin = make.browser(make.admin(world.organization))
    form = admin.get("/admin/schedules/schedulefeed/add/").context["adminform"].form
    sent = {"name": "Office", "organization": form.initial.get("organization") or form["organization"].value()}
    added = admin.post("/admin/schedules/schedulefeed/add/", sent)
    assert added.status_code == 302, added.context["errors"]
    feed = ScheduleFeed.objects.get(organization=world.organization)
    page = admin.get(f"/admin/schedules/schedulefeed/{feed.pk}/change/").content.decode()
    assert feeds.feed_url(feed) in unescape(page)
    assert admin.post(f"/admin/schedules/schedulefeed/{feed.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not ScheduleFeed.objects.exists()
    dispatcher = make.browser(make.dispatcher(world.organization, "Dora"))
    assert dispatcher.get("/admin/schedules/schedulefeed/").status_code in (302, 403)
    assert Event.objects.filter(kind="schedulefeed.revoked").count() == 1


@settings(max_examples=40)
@given(st.text(alphabet=st.characters(exclude_categories=("Cs", "Cc")) | st.just("\n"), max_size=200))
def test_folded_lines_are_short_and_lose_nothing(text: str) -> None:
    event = icalendar.Event()
    event.add("summary", calendar_feed.text_of(text))
    written = event.to_ical().decode()
    folded = written.removesuffix("\r\n").split("\r\n")
    assert all(len(part.encode()) <= 75 for part in folded)
    line = written.replace("\r\n ", "").split("\r\n")[1]
    assert re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], line[8:]) == text
