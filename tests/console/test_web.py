"""Who may see the console, and in which organization."""

from __future__ import annotations

import re
from decimal import Decimal

import pytest
from django.test import Client

from accounts.models import Membership
from dispatch.console import health, page_context
from dispatch.core.events import SYSTEM
from dispatch.core.redis import client as core_redis
from dispatch.telephony.models import SpendCap
from dispatch.telephony.services import spend_caps
from tests.support import factories as make

pytestmark = pytest.mark.django_db
HTMX = {"HX-Request": "true"}


def test_anonymous_visitor_is_sent_to_sign_in_and_back(browser):
    answer = browser().get("/health/?a=1")
    assert answer.status_code == 302
    assert answer.url == "/admin/login/?next=%2Fhealth%2F%3Fa%3D1"


def test_fragment_without_session_reloads_the_page(browser):
    answer = browser().get("/health/", headers=HTMX)
    assert answer.status_code == 204
    assert answer["HX-Redirect"].startswith("/admin/login/")


def test_user_without_an_organization_sees_what_to_do(browser):
    answer = browser(make.user("Nowhere")).get("/health/")
    assert answer.status_code == 403
    assert b"Ask an admin to give you the Dispatcher role" in answer.content


def test_health_bar_shows_problems(browser):
    organization = make.organization()
    client = browser(make.dispatcher(organization))
    assert "No usable phone number" in client.get("/health/").content.decode()
    make.number(organization, max_channels=7)
    health.reset()
    told = client.get("/health/").content.decode()
    assert "<b>7</b> of 7 phone lines free" in told
    assert "none for dispatch-queue" in told
    assert re.search(r"none for \S+, \S+ and \d more", told)


def test_health_bar_says_once_that_the_spending_cap_is_reached(browser):
    organization = make.organization()
    cap = SpendCap(organization=organization, amount=Decimal(0))
    spend_caps.save_cap(cap, {"amount": cap.amount}, actor=SYSTEM)
    told = browser(make.dispatcher(organization)).get("/health/").content.decode()
    assert told.count("Daily spending cap reached") == 1


def test_health_bar_works_while_redis_is_unavailable(browser, monkeypatch):
    def gone(purpose: str) -> None:
        raise core_redis.ConnectionError("gone")

    monkeypatch.setattr(health, "client", gone)
    told = browser(make.dispatcher(make.organization())).get("/health/").content.decode()
    assert "Redis unavailable" in told


def test_user_switches_only_between_their_own_organizations(browser):
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


def test_first_superuser_sees_where_to_create_organizations(browser):
    answer = browser(make.user("Boss", is_superuser=True)).get("/board/")
    assert answer.status_code == 403
    assert '<a href="/admin/">Create one in the admin</a>' in answer.content.decode()


def test_going_on_duty_and_off_is_recorded(browser):
    organization = make.organization()
    person = make.dispatcher(organization, on_duty=False)
    client = browser(person)
    shown = client.post("/duty/", {"on_duty": "1"}, headers=HTMX).content.decode()
    assert "On duty" in shown
    assert Membership.objects.get(user=person).on_duty
    assert client.get("/duty/?shown=1", headers=HTMX).status_code == 204
    assert "Go off duty" in client.get("/duty/?shown=0", headers=HTMX).content.decode()
    assert client.get("/duty/").url == "/"
    answer = client.post("/duty/", {"on_duty": "0"}, headers={"Referer": "https://elsewhere.example/"})
    assert answer.url == "/"
    assert not Membership.objects.get(user=person).on_duty


def test_not_found_page_uses_the_sites_design(browser):
    person = make.dispatcher(make.organization())
    for path in ("/nowhere/", "/outbox/groups/999999/", "/f/nobody/"):
        answer = browser(person).get(path)
        assert answer.status_code == 404
        told = answer.content.decode()
        assert "Page not found" in told
        assert 'href="/"' in told
        assert "dispatch/tokens" in told
    assert "Go to the board" not in browser().get("/nowhere/").content.decode()


def test_forbidden_page_says_what_to_do(browser):
    told = browser(make.admin(make.organization())).get("/admin/rq/")
    assert told.status_code == 403
    assert "ask an admin of your organization" in told.content.decode()
    told = browser(make.dispatcher(make.organization())).get("/board/?text=%00")
    assert told.status_code == 400
    assert "Nothing was changed" in told.content.decode()
    forged = Client(enforce_csrf_checks=True).post("/admin/login/", {"username": "a"})
    assert forged.status_code == 403
    assert "This page expired" in forged.content.decode()


def test_server_error_page_says_that_it_was_logged(browser, monkeypatch):
    def fails(*_: object) -> None:
        raise RuntimeError("broken")

    client = browser(make.dispatcher(make.organization()))
    client.raise_request_exception = False
    monkeypatch.setattr(page_context.health, "current_health", fails)
    told = client.get("/health/")
    assert told.status_code == 500
    assert "The error was logged" in told.content.decode()
    assert "broken" not in told.content.decode()


@pytest.mark.parametrize("way", ["link", "switch"])
@pytest.mark.parametrize("is_member", [False, True])
def test_superuser_enters_organizations_beyond_those_in_the_menu(browser, way, is_member):
    for _ in range(51):
        make.organization("An earlier name")
    last = make.organization("Zeta")
    root = make.user("Root", is_superuser=True)
    if is_member:
        Membership.objects.create(organization=make.organization("Home"), user=root, role="admin")
    client = browser(root)
    if way == "link":
        page = client.get(f"/board/?job=12&in={last.slug}", follow=True)
        assert page.request["QUERY_STRING"] == "job=12"
    else:
        page = client.post("/organization/", {"organization": last.slug}, follow=True)
    assert page.status_code == 200
    assert page.wsgi_request.organization == last


@pytest.mark.parametrize("slug", ["", "nonsense", "a" * 300])
def test_link_to_an_unknown_organization_changes_none(browser, slug):
    organization = make.organization()
    client = browser(make.user("Root", is_superuser=True))
    page = client.get(f"/board/?in={slug}")
    assert page.status_code == 200
    assert page.wsgi_request.organization == organization
