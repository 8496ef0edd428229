"""Who may look at the console, and in which organization."""

from __future__ import annotations

import pytest

from accounts.models import Membership
from dispatch.console import health
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
