"""The admin's page of an exclusion calendar with a URL, whose text is replaced while the page is open."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.schedules.models import ExclusionCalendar
from dispatch.schedules.services import calendars
from tests.schedules.test_calendars import day, ics
from tests.support import factories
from tests.support.admin_forms import open_form, path_of, send_form

pytestmark = pytest.mark.django_db


def test_page_from_before_a_refresh_renames_a_calendar() -> None:
    url, refreshed = "https://example.com/days.ics", ics(day("20270303"))
    organization = factories.organization()
    row = ExclusionCalendar.objects.create(
        organization=organization, name="Days", url=url, content=ics(day("20270302")), refresh_at=clock.now()
    )
    admin = factories.browser(factories.admin(organization))
    form = open_form(admin, row)
    ExclusionCalendar.objects.update(content=refreshed)
    answer = admin.post(path_of(row), {**form, "content": f"{form['content']} more"})
    assert "Set either a URL or a file, not both." in answer.content.decode()
    send_form(admin, row, {**form, "name": "Renamed"})
    assert (row.name, row.url, row.content) == ("Renamed", url, refreshed)
    assert Event.objects.get(kind="exclusioncalendar.changed").data["fields"] == ["name"]


def test_history_names_the_url_that_a_text_replaces() -> None:
    organization, content = factories.organization(), ics(day("20270302"))
    row = ExclusionCalendar.objects.create(
        organization=organization, name="Days", url="https://example.com/days.ics", content=content,
        refresh_at=clock.now(),
    )  # fmt: skip
    calendars.change_calendar(row.pk, {"content": content}, actor=SYSTEM)
    assert Event.objects.get(kind="exclusioncalendar.changed").data["fields"] == ["url"]
