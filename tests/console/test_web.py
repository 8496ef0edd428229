"""Who may look at the console, and in which organization."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from accounts.models import Membership
from dispatch.console import chrome, health
from dispatch.core import redis as core_redis
from tests import factories as make

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


def test_somebody_who_is_not_signed_in_is_sent_to_sign_in_and_back(browser):
    answer = browser().get("/health/?a=1")
    assert answer.status_code == 302
    assert answer.url == "/admin/login/?next=%2Fhealth%2F%3Fa%3D1"


def test_a_fragment_for_nobody_reloads_the_page(browser):
    answer = browser().get("/health/", headers=HTMX)
    assert answer.status_code == 204
    assert answer["HX-Redirect"].startswith("/admin/login/")


def test_somebody_without_an_organization_is_told_what_to_do(browser):
    answer = browser(make.user("Nowhere")).get("/health/")
    assert answer.status_code == 403
    assert b"Ask an Admin of yours" in answer.content


def test_the_health_bar_says_what_is_wrong(browser):
    organization = make.organization()
    client = browser(make.dispatcher(organization))
    assert "No usable phone number" in client.get("/health/").content.decode()
    make.number(organization, max_channels=7)
    health.forget()
    told = client.get("/health/").content.decode()
    assert "Free lines <b>7</b> of 7" in told
    assert "nobody on dispatch-queue" in told
    assert re.search(r"nobody on \S+, \S+ and \d more", told)


def test_the_health_bar_stands_while_redis_is_away(browser, monkeypatch):
    def gone() -> None:
        raise core_redis.ConnectionError("gone")

    monkeypatch.setattr(health, "client", gone)
    told = browser(make.dispatcher(make.organization())).get("/health/").content.decode()
    assert "Redis is away" in told


def test_a_person_changes_to_another_of_their_organizations_but_to_no_strangers(browser):
    first, second, strange = (make.organization() for _ in range(3))
    person = make.dispatcher(first)
    Membership.objects.create(organization=second, user=person, role="admin")
    client = browser(person)
    client.post("/organization/", {"organization": second.slug})
    make.number(second, max_channels=3)
    assert "of 3" in client.get("/health/").content.decode()
    assert client.post("/organization/", {"organization": strange.slug}).status_code == 403
    assert "of 3" in client.get("/health/").content.decode()


def test_a_superuser_chooses_among_all_organizations(browser):
    make.organization()
    second = make.organization()
    make.number(second, max_channels=3)
    boss = make.user("Boss", is_superuser=True)
    client = browser(boss)
    refused = client.get("/board/")
    assert (refused.status_code, b"Choose one in the menu" in refused.content) == (403, True)
    client.post("/organization/", {"organization": second.slug})
    assert "of 3" in client.get("/health/").content.decode()


def test_the_first_superuser_is_told_where_organizations_are_made(browser):
    answer = browser(make.user("Boss", is_superuser=True)).get("/board/")
    assert answer.status_code == 403
    assert '<a href="/admin/">Make one in the admin</a>' in answer.content.decode()


def test_going_on_duty_and_off_is_recorded(browser):
    organization = make.organization()
    person = make.dispatcher(organization, on_duty=False)
    client = browser(person)
    shown = client.post("/duty/", {"on_duty": "1"}, headers=HTMX).content.decode()
    assert "On duty" in shown
    assert Membership.objects.get(user=person).on_duty
    answer = client.post("/duty/", {"on_duty": "0"}, headers={"Referer": "https://elsewhere.example/"})
    assert answer.url == "/"
    assert not Membership.objects.get(user=person).on_duty


def test_what_is_not_there_is_said_in_the_pages_own_look(browser):
    person = make.dispatcher(make.organization())
    for path in ("/nowhere/", "/outbox/groups/999999/", "/f/nobody/"):
        answer = browser(person).get(path)
        assert answer.status_code == 404
        told = answer.content.decode()
        assert "There is nothing here" in told
        assert 'href="/"' in told
        assert "dispatch/tokens" in told
    assert "To the board" not in browser().get("/nowhere/").content.decode()


def test_what_is_refused_is_said_with_what_to_do(browser):
    told = browser(make.admin(make.organization())).get("/admin/rq/")
    assert told.status_code == 403
    assert "ask an Admin of your organization" in told.content.decode()
    told = browser(make.dispatcher(make.organization())).get("/board/?text=%00")
    assert told.status_code == 400
    assert "Nothing was changed" in told.content.decode()
    forged = Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "a"})
    assert forged.status_code == 403
    assert "Please send it once more" in forged.content.decode()


def test_a_failure_is_said_to_be_logged(browser, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    client = browser(make.dispatcher(make.organization()))
    client.raise_request_exception = False
    monkeypatch.setattr(chrome.health, "of", fails)
    told = client.get("/health/")
    assert told.status_code == 500
    assert "It was logged" in told.content.decode()
    assert "broken" not in told.content.decode()
