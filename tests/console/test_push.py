"""Push notifications on the settings page and on a technician's page, and the service worker."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

import pytest
from django.test import Client

from accounts import services
from accounts.auth.sessions import end_all_sessions
from accounts.models import Organization, User
from dispatch.core import events
from dispatch.jobs import signed_links
from notifications import loops
from notifications.models import PushSubscription
from notifications.services.push_sign_out import COOKIE
from tests.notifications.push_service import PushService
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

PUSH = "/notifications/push/"


@pytest.fixture
def office() -> Organization:
    return make.organization("Desert Air")


@pytest.fixture
def dora(office: Organization) -> User:
    return make.dispatcher(office, "Dora")


def post(client: Client, path: str, **body: Any) -> Any:
    return client.post(path, json.dumps(body), content_type="application/json")


def test_user_turns_on_tests_and_turns_off(push_service: PushService, dora: User) -> None:
    client, laptop = make.browser(dora), push_service.browser("laptop")
    assert client.get(PUSH).json()["browsers"] == []
    answer = post(client, PUSH, do="on", subscription=laptop.subscription)
    (digest,) = answer.json()["browsers"]
    assert answer.cookies[COOKIE]["httponly"]
    assert post(client, PUSH, do="test", browser=digest).status_code == 200
    assert "Sending a test notification" in client.get("/notifications/choices/").content.decode()
    while loops.send_push() == 0:
        pass
    assert push_service.payloads("laptop")[0]["title"] == "Test notification"
    shown = client.get("/notifications/push/browsers/", headers={"HX-Request": "true"}).content.decode()
    assert "Works." in shown
    opened = client.get("/notifications/push/browsers/")  # the page with the list, not a part of it
    assert (opened.status_code, opened["Location"]) == (302, "/notifications/choices/#push")
    assert laptop.subscription["endpoint"] not in shown
    assert post(client, PUSH, do="off", browser=digest).json()["browsers"] == []
    assert not PushSubscription.objects.exists()


def test_sign_out_removes_this_browser_only(push_service: PushService, dora: User) -> None:
    laptop, phone = make.browser(dora), make.browser(dora)
    post(laptop, PUSH, do="on", subscription=push_service.browser("laptop").subscription)
    post(phone, PUSH, do="on", subscription=push_service.browser("phone").subscription)
    laptop.post("/admin/logout/")
    (row,) = PushSubscription.objects.all()
    assert row.endpoint.endswith("/phone")


CHOSEN = "a new one for tests"
NEW_PASSWORD = {"old_password": make.PASSWORD, "new_password1": CHOSEN, "new_password2": CHOSEN}


@pytest.mark.parametrize(
    ("path", "form"), [("/admin/password_change/", NEW_PASSWORD), ("/account/sessions/", {"others": "1"})]
)
def test_browser_that_stays_signed_in_keeps_push_and_others_lose_it(
    push_service: PushService, dora: User, path: str, form: dict[str, str]
) -> None:
    laptop, phone = make.browser(dora), make.browser(dora)
    post(laptop, PUSH, do="on", subscription=push_service.browser("laptop").subscription)
    post(phone, PUSH, do="on", subscription=push_service.browser("phone").subscription)
    assert laptop.post(path, form).status_code == 302
    done = laptop.get("/admin/password_change/done/").content.decode()
    assert "push notifications ended in them. Turn them on again there" in done
    (digest,) = laptop.get(PUSH).json()["browsers"]
    assert PushSubscription.objects.get(endpoint_hash=digest).endpoint.endswith("/laptop")
    assert post(laptop, PUSH, do="test", browser=digest).status_code == 200
    while loops.send_push() == 0:
        pass
    assert push_service.payloads("laptop")[0]["title"] == "Test notification"


def test_push_that_had_ended_stays_so_after_a_new_password(push_service: PushService, dora: User) -> None:
    laptop = make.browser(dora)
    post(laptop, PUSH, do="on", subscription=push_service.browser("laptop").subscription)
    end_all_sessions(dora, actor=events.SYSTEM)
    again = make.browser(User.objects.get(pk=dora.pk))
    again.cookies[COOKIE] = laptop.cookies[COOKIE].value
    again.post("/admin/password_change/", NEW_PASSWORD)
    assert again.get(PUSH).json()["browsers"] == []


def test_new_password_of_another_user_keeps_no_push(
    push_service: PushService, office: Organization, dora: User
) -> None:
    """The cookie names a browser of somebody else, or the password is set by a link, which signs in nobody."""
    laptop = make.browser(dora)
    post(laptop, PUSH, do="on", subscription=push_service.browser("laptop").subscription)
    mallory = make.browser(make.dispatcher(office, "Mallory"))
    mallory.cookies[COOKIE] = laptop.cookies[COOKIE].value
    before = PushSubscription.objects.values().get()
    mallory.post("/admin/password_change/", NEW_PASSWORD)
    assert PushSubscription.objects.values().get() == before
    page = laptop.get(services.password_path(dora), follow=True)
    laptop.post(page.redirect_chain[-1][0], {"new_password1": CHOSEN, "new_password2": CHOSEN})
    assert make.browser(User.objects.get(pk=dora.pk)).get(PUSH).json()["browsers"] == []


def test_cookie_of_another_user_removes_nothing(
    push_service: PushService, office: Organization, dora: User
) -> None:
    post(make.browser(dora), PUSH, do="on", subscription=push_service.browser("laptop").subscription)
    mallory = make.browser(make.dispatcher(office, "Mallory"))
    for given in (str(PushSubscription.objects.get().public_id), "nonsense", "0" * 3000):
        mallory.cookies[COOKIE] = given
        mallory.post("/admin/logout/")
    assert PushSubscription.objects.count() == 1


def test_colleagues_browser_cannot_be_tested_or_removed(
    push_service: PushService, office: Organization, dora: User
) -> None:
    post(make.browser(dora), PUSH, do="on", subscription=push_service.browser("laptop").subscription)
    row = PushSubscription.objects.get()
    mallory = make.browser(make.dispatcher(office, "Mallory"))
    for act in ("test", "remove"):
        assert mallory.post(f"{PUSH}{row.pk}/{act}/").status_code == 404
    post(mallory, PUSH, do="off", browser=row.endpoint_hash)
    assert PushSubscription.objects.count() == 1
    assert post(mallory, PUSH, do="test", browser=row.endpoint_hash).status_code == 429


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 400), (b"{", 400), (b"[" * 2000, 400), (b'{"do": "on"}', 422), (b'{"do": "x"}', 400),
        (b'{"do": "on", "subscription": "x"}', 422), (b'{"do": "off", "browser": "\\u0000"}', 200),
        (b'{"do": "on", "subscription": {"endpoint": "https://push.example.com/\\u0000", "keys": {}}}', 422),
        (b"x" * 5000, 400), (b"\xff", 400),
    ],
)  # fmt: skip
def test_malformed_body_is_refused(dora: User, body: bytes, status: int) -> None:
    answer = make.browser(dora).post(PUSH, body, content_type="application/json")
    assert answer.status_code == status


def test_technician_gets_push_by_their_link(push_service: PushService, office: Organization) -> None:
    ann = make.technician(office, "Ann")
    path = urlsplit(signed_links.technician_url(ann)).path + "push/"
    client, phone = Client(), push_service.browser("phone")
    (digest,) = post(client, path, do="on", subscription=phone.subscription).json()["browsers"]
    post(client, path, do="test", browser=digest)
    while loops.send_push() == 0:
        pass
    (payload,) = push_service.payloads("phone")
    assert payload["url"].startswith("/t/")
    assert client.get(payload["url"]).status_code == 200
    assert post(client, "/t/forged/push/", do="on", subscription=phone.subscription).status_code == 404


def test_service_worker_may_control_every_page_and_keeps_no_data(dora: User) -> None:
    answer = Client().get("/service-worker.js")
    assert answer["Service-Worker-Allowed"] == "/"
    assert answer["Content-Type"].startswith("text/javascript")
    assert "no-cache" in answer["Cache-Control"]
    kept = json.loads(answer.content.decode().split("const KEPT = ")[1].split(";")[0])
    assert all(path == "/offline/" or "/static/" in path for path in kept)
    page = make.browser(dora).get("/offline/").content.decode()
    assert "You're offline" in page.replace("&#x27;", "'")
    assert "Dora" not in page
    assert "worker-src 'self'" in make.browser(dora).get("/board/")["Content-Security-Policy"]
