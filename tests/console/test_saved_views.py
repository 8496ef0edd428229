"""Views of the board: saved per person, shared with the organization, and the one with which the board opens."""

from __future__ import annotations

import html
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import QueryDict
from django.urls import reverse

from accounts import personal
from accounts.models import DefaultView, SavedView, User
from accounts.saved_views import services
from dispatch.console.board.display import Display, normalize
from dispatch.core.privacy import personal_data
from tests.console.test_board import HTMX, Desk
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def desk(browser) -> Desk:
    return Desk(browser)


def save(desk: Desk, name: str, query: str = "", client: Any = None, **more: str) -> Any:
    return (client or desk.client).post(reverse("console:views"), {"name": name, "query": query, **more})


def change(desk: Desk, view: SavedView, do: str, client: Any = None, **more: str) -> Any:
    return (client or desk.client).post(reverse("console:view", args=[view.pk]), {"do": do, **more})


def board(desk: Desk, query: str = "view=all", client: Any = None) -> str:
    return (client or desk.client).get(f"{reverse('console:board')}?{query}").content.decode()


def names(desk: Desk, person: User | None = None) -> list[str]:
    return [view.name for view in services.visible_views(desk.organization, person or desk.person)]


# --- what is saved -----------------------------------------------------------------------------------------------
def test_only_what_the_board_knows_is_saved():
    dirty = "text=leak&priority=emergency&layout=list&columns=done,new,x&show=all&map=1&job=7&evil=<b>"
    assert parse_qs(normalize(dirty)) == {
        "text": ["leak"], "priority": ["emergency"], "layout": ["list"], "columns": ["new,done"], "show": ["all"],
        "map": ["1"],
    }  # fmt: skip
    assert normalize("priority=x&layout=x&columns=new,calling,assigned,done&technician=x&show=x") == ""
    assert len(normalize("&".join(f"text={'x' * 9000}" for _ in range(5)))) < 200


def test_display_is_read_from_the_address():
    assert Display.of(QueryDict("columns=assigned,calling")).shown == ("calling", "assigned")
    assert Display.of(QueryDict("columns=")).shown == ("new", "calling", "assigned", "done")
    assert Display.of(QueryDict("layout=compact&columns=done")).as_query() == {
        "layout": "compact",
        "columns": "done",
    }


def test_view_is_saved_chosen_renamed_and_deleted(desk):
    desk.job(address="1 Main St, Tempe, AZ 85281")
    desk.job(address="2 Oak St, Mesa, AZ 85201")
    answer = save(desk, "  East   side ", "area=Tempe&layout=compact")
    assert answer.url.endswith("/board/?area=Tempe&layout=compact")
    (view,) = SavedView.objects.all()
    assert (view.name, view.owner, view.query) == ("East side", desk.person, "area=Tempe&layout=compact")
    page = board(desk)
    assert 'href="/board/?area=Tempe&amp;layout=compact"' in page
    chosen = board(desk, view.query)
    assert "1 Main St" in chosen
    assert "2 Oak St" not in chosen
    assert "lists as-compact" in chosen
    assert 'aria-current="true"><bdi>East side' in chosen
    change(desk, view, "rename", name="Tempe")
    assert names(desk) == ["Tempe"]
    change(desk, view, "delete")
    assert names(desk) == []


def test_saving_under_the_same_name_replaces_the_view(desk):
    save(desk, "East", "area=Tempe")
    save(desk, "EAST", "area=Mesa")
    assert [(view.name, view.query) for view in SavedView.objects.all()] == [("EAST", "area=Mesa")]


def test_columns_are_hidden_but_kept_up_to_date(desk):
    desk.job("completed")
    page = board(desk, "columns=new,calling")
    assert 'data-list="done" hidden' in page
    assert 'data-list="calling">' in page
    assert "lists of-2" in page
    assert 'name="columns" value="new,calling"' in page, "filters keep the columns"
    assert 'aria-label="Hide New"' in page
    assert 'aria-label="Show Done"' in page


def test_last_column_cannot_be_hidden(desk):
    page = board(desk, "columns=new")
    assert 'aria-label="Hide New"' not in page
    assert 'aria-disabled="true"' in page


# --- the default -------------------------------------------------------------------------------------------------
def test_board_opens_with_the_default_view_of_this_person(desk, browser):
    save(desk, "East", "area=Tempe")
    view = SavedView.objects.get()
    change(desk, view, "default")
    assert desk.client.get(reverse("console:board")).url == "/board/?area=Tempe"
    assert desk.client.get(reverse("console:board"), headers=HTMX).status_code == 200, (
        "a fragment is not redirected"
    )
    assert desk.client.get(f"{reverse('console:board')}?job=1").status_code == 200
    assert 'href="/board/?view=all"' in board(desk, "area=Tempe"), "Clear filters does not lead to the default"
    other = browser(make.dispatcher(desk.organization, "Sam"))
    assert other.get(reverse("console:board")).status_code == 200
    change(desk, view, "no_default")
    assert desk.client.get(reverse("console:board")).status_code == 200


def test_deleted_default_opens_all_jobs(desk):
    save(desk, "East", "area=Tempe")
    view = SavedView.objects.get()
    change(desk, view, "default")
    change(desk, view, "delete")
    assert desk.client.get(reverse("console:board")).status_code == 200
    assert not DefaultView.objects.exists()


# --- sharing -----------------------------------------------------------------------------------------------------
def test_shared_view_is_seen_by_all_and_changed_by_its_sharer_and_admins(desk, browser):
    save(desk, "Mine", "area=Mesa")
    save(desk, "Ours", "area=Tempe", shared="1")
    sam, boss = make.dispatcher(desk.organization, "Sam"), make.admin(desk.organization, "Boss")
    assert names(desk, sam) == ["Ours"]
    view = SavedView.objects.get(name="Ours")
    page = board(desk, client=browser(sam))
    assert "Ours" in page
    assert "Mine" not in page
    assert "Rename" not in page
    assert change(desk, view, "rename", browser(sam), name="Stolen").status_code == 403
    assert change(desk, view, "delete", browser(sam)).status_code == 403
    assert change(desk, view, "default", browser(sam)).status_code == 302, "anyone may open their board with it"
    refused = browser(sam).post(reverse("console:views"), {"name": "ours", "shared": "1"}, headers={
        **HTMX, "HX-Current-URL": "http://testserver/board/?area=Mesa",
    })  # fmt: skip
    assert "Someone else has shared a view with this name" in refused.content.decode()
    assert change(desk, view, "rename", browser(boss), name="All of us").status_code == 302
    assert names(desk, sam) == ["All of us"]


def test_own_view_can_be_shared_later(desk):
    save(desk, "East", "area=Tempe")
    view = SavedView.objects.get()
    change(desk, view, "share")
    view.refresh_from_db()
    assert (view.is_shared, view.shared_by) == (True, desk.person)
    save(desk, "East", "area=Mesa")
    own = SavedView.objects.get(owner=desk.person)
    answer = desk.client.post(
        reverse("console:view", args=[own.pk]),
        {"do": "share"},
        headers={**HTMX, "HX-Current-URL": "http://x/board/"},
    )
    assert "A view with this name already exists" in answer.content.decode()


def test_shared_view_stays_when_the_person_who_shared_it_is_erased(desk):
    save(desk, "Mine", "area=Mesa")
    save(desk, "Ours", "area=Tempe", shared="1")
    change(desk, SavedView.objects.get(name="Ours"), "default")
    make.admin(desk.organization, "Boss")
    person = personal_data.DataSubject(desk.organization.pk, user_id=desk.person.pk)
    assert [row["name"] for row in personal.rows(person)["saved_views"]] == ["Mine", "Ours"]
    personal.erase(person)
    (view,) = SavedView.objects.all()
    assert (view.name, view.shared_by) == ("Ours", None)
    assert not DefaultView.objects.exists()


# --- limits and tenants ------------------------------------------------------------------------------------------
def test_number_of_views_is_limited(desk, monkeypatch):
    monkeypatch.setattr(services, "MAX_OWN", 2)
    monkeypatch.setattr(services, "MAX_SHARED", 1)
    save(desk, "A")
    save(desk, "B")
    answer = desk.client.post(reverse("console:views"), {"name": "C"}, headers={**HTMX, "HX-Current-URL": "x"})
    assert "You have 2 views. Delete one first." in html.unescape(answer.content.decode())
    assert 'value="C"' in answer.content.decode(), "what was entered is kept"
    save(desk, "S", shared="1")
    save(desk, "T", shared="1")
    change(desk, SavedView.objects.get(name="A"), "share")
    assert names(desk) == ["A", "B", "S"]
    save(desk, "b", "area=Mesa")
    assert SavedView.objects.get(name="b").query == "area=Mesa", "a full list can be changed"


@pytest.mark.parametrize("name", ["", "   ", "x" * 61, "a\u202eb", "a\u200bb"])
def test_names_that_cannot_be_read_are_refused(desk, name):
    answer = desk.client.post(reverse("console:views"), {"name": name}, headers={**HTMX, "HX-Current-URL": "x"})
    assert answer.status_code == 422
    assert 'role="alert"' in answer.content.decode()
    assert not SavedView.objects.exists()


def test_names_are_escaped_everywhere(desk):
    evil = "\"><script>alert(1)</script><b x='"
    save(desk, evil, "area=Tempe", shared="1")
    page = board(desk, "area=Tempe")
    assert "<script>alert(1)" not in page
    assert html.escape(evil) in page
    save(desk, "فريق الشرق")
    assert "<bdi>فريق الشرق</bdi>" in board(desk)


def test_views_of_other_people_and_organizations_do_not_exist(desk, browser):
    save(desk, "Mine", "area=Mesa")
    save(desk, "Ours", "area=Tempe", shared="1")
    stranger = make.admin(make.organization(), "Eve")
    sam = make.dispatcher(desk.organization, "Sam")
    mine, ours = SavedView.objects.get(name="Mine"), SavedView.objects.get(name="Ours")
    for view, person in ((mine, sam), (mine, stranger), (ours, stranger)):
        for do in ("rename", "share", "delete", "default"):
            assert change(desk, view, do, browser(person), name="x").status_code == 404
    assert "Ours" not in board(desk, client=browser(stranger))
    assert {view.name for view in SavedView.objects.all()} == {"Mine", "Ours"}
    with pytest.raises(PermissionDenied):
        services.delete_view(desk.organization, ours.pk, sam, "dispatcher")
    with pytest.raises(ValidationError):
        services.rename_view(desk.organization, ours.pk, desk.person, "dispatcher", "")


def test_requests_that_no_page_sends_change_nothing(desk, browser):
    save(desk, "Mine")
    view = SavedView.objects.get()
    assert change(desk, view, "explode").status_code == 400
    assert desk.client.get(reverse("console:view", args=[view.pk])).status_code == 405
    assert desk.client.get(reverse("console:views")).url == "/board/?view=all"
    assert urlsplit(browser(None).post(reverse("console:views"), {"name": "x"}).url).path != "/board/"
    odd = desk.client.post(
        reverse("console:views"), {"name": "Odd"}, headers={**HTMX, "HX-Current-URL": "http://[bad/?area=Mesa"}
    )
    assert odd.status_code == 200
    assert names(desk) == ["Mine", "Odd"]
