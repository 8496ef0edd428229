"""Fields name their help and their errors: a screen reader says them with the field."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, PublicForm, Submission
from tests.accounts.test_admin_walk import SUPERUSERS_ONLY, url
from tests.console.test_spanish_pages import paths_of
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db

MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
REFERENCES = ("aria-describedby", "aria-labelledby", "aria-errormessage")


class Ids(HTMLParser):
    """Collect the ids of a page, what its elements refer to, and its errors of fields."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids = set[str]()
        self.references = set[str]()
        self.errors: list[str | None] = []
        self.nameless: list[str | None] = []  # elements that cannot have the name that they are given
        self.undescribed: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids.add(given.get("id") or "")
        for name in REFERENCES:
            self.references |= set((given.get(name) or "").split())
        if tag in ("p", "span") and {"aria-label", "aria-labelledby"} & given.keys() and "role" not in given:
            self.nameless.append(given.get("class"))
        if "error" in (given.get("class") or "").split():
            self.errors.append(given.get("id"))
        is_described = "aria-describedby" in given or given.get("type") == "radio"  # its group is described
        if given.get("aria-invalid") == "true" and not is_described:
            self.undescribed.append(given.get("name"))

    @property
    def problems(self) -> list[str | None]:
        orphans = [error for error in self.errors if error not in self.references]
        return [*sorted(self.references - self.ids), *orphans, *self.undescribed, *self.nameless]


def problems_of(page: str) -> list[str | None]:
    return Ids(page).problems


def test_every_description_of_a_page_exists(ours: Tenant, browser: Callable[..., Client]) -> None:
    client = browser(ours.admin)
    job = ours.row(Job)
    paths = [
        *paths_of(ours),
        *(f"/board/{path}" for path in ("", "timeline/", "new/", f"?job={job.pk}")),
        *(reverse("console:act", args=[job.pk, do]) for do in ("correct", "cancel", "assign")),
        "/notifications/",
        "/notifications/choices/",
        "/notifications/channels/new/slack/",
        "/phones/",
        f"/f/{ours.row(PublicForm).organization.slug}/",
        urlsplit(signed_links.status_url(ours.row(Submission))).path,
    ]
    for model in MODELS:
        paths += [url(model, "add")]
        if model._meta.label_lower not in SUPERUSERS_ONLY:
            paths += [url(model, "change", ours.row(model).pk)]
    found = {path: problems_of(client.get(path).content.decode()) for path in paths}
    assert {path: problems for path, problems in found.items() if problems} == {}


def test_errors_of_forms_describe_their_fields(ours: Tenant, browser: Callable[..., Client]) -> None:
    client = browser(ours.admin)
    job = ours.row(Job)
    new_schedule = {"kind": "http", "p-body": "{", "p-url": "no", "time_zone": "no"}
    timings = [
        {"how": "cron", "cron": "0 9 * *", "max_occurrences": "x", "starts_at": "x", "ends_at": "x"},
        {"how": "rrule", "rrule": "FREQ=NO", "missed_after_s": "x", "jitter_s": "x", "retry_schedule_s": "x"},
        {"how": "every", "every": "x", "unit": "x", "exclude_calendars": "x"},
        {"how": "once", "trigger_at": "x"},
    ]
    requests = [
        *((reverse("console:new_schedule"), {**new_schedule, **timing}) for timing in timings),
        (reverse("console:act", args=[job.pk, "correct"]), {"customer_phone": "x", "window_day": "x"}),
        (reverse("console:act", args=[job.pk, "assign"]), {"technician": "x"}),
        ("/board/new/", {"customer_phone": "x", "window_day": "x"}),
        (f"/f/{ours.row(PublicForm).organization.slug}/", {"phone": "x"}),
        ("/account/second-factor/totp/activate/", {"code": "x"}),
        ("/admin/technicians/technician/add/", {"name": ""}),
    ]
    for path, sent in requests:
        page = client.post(path, sent).content.decode()
        assert re.search(r'aria-invalid="true"|_error"', page), path
        assert problems_of(page) == [], path
        if "/act/" in path:
            assert re.search(r'id="refused"[^>]*>.*?Fix the errors below', page), "focused"


def test_refused_sign_in_describes_the_focused_field(client: Client) -> None:
    page = client.post("/admin/login/", {"username": "nobody@example.com", "password": "x"}).content.decode()
    error = re.search(r'<p role="alert" id="([^"]+)"[^>]*>\s*The email or password is wrong', page)
    assert error
    assert f'aria-describedby="{error[1]}"' in page
    assert problems_of(page) == []
