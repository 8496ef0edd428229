"""An invalid id anywhere gives "not found", never a failure."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlsplit

import pytest
from django.test import Client

from dispatch.core.ids import read_id, read_ids
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job
from dispatch.outbox.models import Message
from dispatch.schedules.models import Run
from dispatch.technicians.models import Technician
from notifications.models import Notification
from tests.support.tenants import Tenant, everything_of

pytestmark = pytest.mark.django_db

NO_IDS = ("²", "١", "9" * 30, "9" * 5000, "-1", "", "1.0", "1\x00", "+1")


@pytest.fixture
def client(ours: Tenant) -> Client:
    """The Admin's client, in which a failing page responds with status 500."""
    found = Client(raise_request_exception=False, headers={"HX-Request": "true"})
    ours.sign_in(found, ours.admin)
    return found


@pytest.mark.parametrize("spelling", NO_IDS)
def test_invalid_id_is_read_as_none(spelling):
    assert read_id(spelling) is None
    assert read_ids(["12", spelling, "0"]) == [12, 0]


def test_an_id_is_read():
    assert [read_id(text) for text in ("0", "7", "007", "9" * 18)] == [0, 7, 7, 10**18 - 1]
    assert read_id(None) is None
    assert read_id(7) is None  # not a string: ids of other types need no parsing


@pytest.mark.parametrize(
    "path",
    [
        "/board/jobs/{}/", "/board/jobs/{}/act/assign/", "/outbox/groups/{}/", "/outbox/messages/{}/",
        "/outbox/endpoints/{}/", "/schedules/{}/", "/schedules/{}/edit/", "/schedules/runs/{}/",
        "/api/v1/jobs/{}/", "/api/v1/messages/{}/", "/api/v1/leads/{}/", "/api/v1/schedules/{}/",
        "/api/v1/runs/{}/", "/api/v1/technicians/{}/", "/api/v1/endpoints/{}/", "/api/v1/alerts/{}/",
        "/api/v1/submissions/{}/",
    ],
)  # fmt: skip
def test_page_of_an_invalid_id_is_404(client, path):
    for spelling in NO_IDS:
        if spelling or not path.startswith("/api/"):  # without one, that is the list
            assert client.get(path.format(quote(spelling, safe=""))).status_code == 404, spelling


@pytest.mark.parametrize(
    "path",
    [
        "/board/crew/{}/back/", "/notifications/{}/acknowledge/", "/leads/campaigns/{}/pause/",
        "/leads/{}/cancel/", "/outbox/endpoints/{}/act/", "/schedules/{}/act/pause/",
        "/schedules/runs/{}/act/cancel/", "/board/jobs/{}/act/cancel/",
    ],
)  # fmt: skip
def test_invalid_id_changes_nothing(client, ours, path):
    before = everything_of(ours)
    for spelling in NO_IDS:
        assert client.post(path.format(quote(spelling, safe=""))).status_code == 404, spelling
    assert everything_of(ours) == before


@pytest.mark.parametrize(
    "path",
    [
        "/board/?job={}", "/board/?technician={}", "/board/map/?job={}", "/board/changes/?ids={}",
        "/board/changes/?ids=1,{}&event={}", "/notifications/?before={}", "/outbox/?endpoint={}",
        "/leads/?page={}", "/outbox/?page={}", "/outbox/messages/?endpoint={}", "/outbox/messages/?id={}",
        "/outbox/messages/?before={}", "/schedules/?page={}", "/schedules/?view=runs&page={}",
        "/reports/?days={}", "/phones/news/?after={}", "/admin/telephony/call/?q=%23{}",
        "/admin/jobs/job/?technician__id__exact={}",
    ],
)  # fmt: skip
def test_query_string_with_an_invalid_id_is_answered(client, monkeypatch, path):
    monkeypatch.setattr("dispatch.dev.phones.simulator.changed_since", lambda after, wait_s: (after, []))
    for spelling in NO_IDS:
        answer = client.get(path.replace("{}", quote(spelling, safe="")), follow=True)
        assert answer.status_code in (200, 400, 404), spelling


@pytest.mark.parametrize(
    "page", ["/admin/jobs/job/{}/change/", "/admin/jobs/job/{}/history/", "/admin/jobs/job/{}/delete/"]
)
def test_admin_page_of_an_invalid_id_is_404(client, page):
    for spelling in NO_IDS:
        answer = client.get(page.format(quote(spelling, safe="")))
        assert answer.status_code < 500, spelling  # Django reads "+1" and "١" as 1, of which there is one


def test_page_with_a_non_numeric_column_value_is_404(client):
    for spelling in NO_IDS:
        assert client.get("/board/columns/new/", {"page": spelling}).status_code in (400, 404), spelling


def test_post_with_an_invalid_id_does_nothing(client, ours):
    before = everything_of(ours)

    def sent(path: str, **body: Any) -> int:
        return client.post(path, body).status_code

    job = ours.row(Job)
    page = urlsplit(signed_links.technician_url(ours.row(Technician))).path
    for spelling in NO_IDS:
        assert sent("/board/claims/", kind="job", key=spelling, do="claim") in (400, 404), spelling
        assert sent("/board/claims/", kind="call_error", key=spelling, do="claim") in (400, 404), spelling
        if spelling:  # without one, all are read
            assert sent("/notifications/read/", id=spelling) in (400, 404), spelling
        assert sent("/outbox/messages/act/", action="retry", ids=[spelling]) < 500, spelling
        assert sent("/outbox/messages/act/", action="retry", ids=[spelling], confirmed="1") < 500, spelling
        assert sent(f"/board/jobs/{job.pk}/act/assign/", technician=spelling, version=99) in (400, 409, 422), (
            spelling
        )
        assert sent(f"/board/jobs/{job.pk}/act/assign/", technician="1", version=spelling, search="1") < 500, (
            spelling
        )
        assert sent("/admin/jobs/job/", action="assign_selected", _selected_action=[spelling]) == 400, spelling
        chosen = {
            "action": "assign_selected",
            "_selected_action": [job.pk],
            "apply": "1",
            f"version_{job.pk}": "1",
        }
        assert sent("/admin/jobs/job/", **chosen, technician=spelling) < 500, spelling
        assert sent("/admin/technicians/skill/", action="delete_selected", _selected_action=[spelling]) == 400, (
            spelling
        )
        assert sent(page, do="done", job=spelling) < 500, spelling
    assert everything_of(ours) == before
    assert Notification.objects.of(ours.organization).count() == 1


@pytest.mark.parametrize(
    "path",
    [
        "/board/?text=%00", "/board/?area=%00&service=%00", "/board/changes/?all=1&text=%00",
        "/schedules/?name=%00", "/board/columns/new/?text=%00", "/outbox/?q=%00",
        "/outbox/messages/?type=%00", "/leads/phone/?q=%00", "/admin/jobs/job/?status__exact=%00",
        "/admin/autocomplete/?app_label=jobs&model_name=job&field_name=technician&term=%00",
        "/nobody-knows-this/?q=%00", "/f/nobody/?q=%00",
    ],
)  # fmt: skip
def test_value_that_no_column_can_store_is_a_bad_request(client, path):
    assert client.get(path).status_code == 400


def test_value_that_no_column_can_store_is_not_written(client, ours):
    before = everything_of(ours)
    body = {"reason": "Called\x00off", "version": ours.row(Job).version}
    assert client.post(f"/board/jobs/{ours.row(Job).pk}/act/cancel/", body).status_code == 400
    assert everything_of(ours) == before


def test_invalid_page_of_an_inline_list_is_the_first(client: Client, ours: Tenant) -> None:
    message = f"/admin/outbox/message/{ours.row(Message).pk}/change/?attempts_made-page="
    run = f"/admin/schedules/run/{ours.row(Run).pk}/change/?reports-page="
    for path in (message, run):
        for spelling in (*NO_IDS, "0", "9"):
            expected = 400 if "\x00" in spelling else 200
            assert client.get(path + quote(spelling, safe="")).status_code == expected, spelling
