"""Sessions end by their limits, by their owner and by an admin."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from accounts import loops, services
from accounts.auth import sessions
from accounts.auth.session_store import LIMITED_FROM, SIGNED_IN_AT, SessionStore
from accounts.auth.user_agents import describe_user_agent
from accounts.models import ApiKey, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from tests.accounts.second_factor import is_signed_in, sign_in
from tests.support import factories as make

pytestmark = pytest.mark.django_db

PAGE = "/account/sessions/"
CHOSEN = "three blind llamas"
CONFIRMED = {"_form_submitted": "True"}  # the dialog of an action
SECOND = timedelta(seconds=1)


@pytest.fixture
def dana() -> User:
    return make.dispatcher(make.organization(), "Dana")


def ends_at(client: Client) -> Any:
    return Session.objects.get(pk=client.cookies["sessionid"].value).expire_date


def end_at(client: Client, when: Any) -> None:
    Session.objects.filter(pk=client.cookies["sessionid"].value).update(expire_date=when)


def listed(client: Client) -> list[UserSession]:
    rows: list[UserSession] = client.get(PAGE).context_data["sessions"]  # type: ignore[attr-defined]
    return rows


def test_idle_session_ends(dana: User, settings: Any) -> None:
    settings.SESSION_IDLE_HOURS = 2
    client = sign_in(dana)
    assert abs(ends_at(client) - clock.now() - timedelta(hours=2)) < timedelta(minutes=10)
    end_at(client, clock.now() - SECOND)
    assert client.get("/board/").status_code == 302
    assert client.get("/api/v1/me/").status_code == 401


def test_use_moves_the_idle_limit_without_a_save_of_the_session(dana: User, settings: Any) -> None:
    settings.SESSION_IDLE_HOURS = 2
    client = sign_in(dana)
    stored = Session.objects.get(pk=client.cookies["sessionid"].value).session_data
    end_at(client, clock.now() + timedelta(minutes=30))
    assert client.get("/board/").status_code == 200
    assert ends_at(client) > clock.now() + timedelta(minutes=90)
    assert Session.objects.get(pk=client.cookies["sessionid"].value).session_data == stored


def test_use_does_not_move_the_absolute_limit(dana: User, settings: Any) -> None:
    settings.SESSION_IDLE_HOURS, settings.SESSION_MAX_HOURS = 2, 10
    client = sign_in(dana)
    session = client.session
    session[SIGNED_IN_AT] -= 9 * 3600
    session.save()
    latest = clock.now() + timedelta(hours=1)
    assert client.get("/board/").status_code == 200
    assert ends_at(client) <= latest
    session = client.session
    session[SIGNED_IN_AT] -= 2 * 3600
    session.save()
    assert client.get("/board/").status_code == 302


def test_session_from_before_the_limits_gets_one(dana: User) -> None:
    client = make.browser(dana)
    session = client.session
    del session[SIGNED_IN_AT]
    session.save()
    assert client.get("/board/").status_code == 200
    assert client.session[LIMITED_FROM] <= clock.now().timestamp()
    assert len(listed(client)) == 1


def test_session_from_before_the_limits_must_confirm_the_user(dana: User) -> None:
    client = make.browser(dana)
    session = client.session
    del session[SIGNED_IN_AT]
    session.save()
    assert client.get("/board/").status_code == 200
    answer = client.get(reverse("mfa_activate_totp"))
    assert answer.status_code == 302
    assert answer.url.startswith(reverse("account_reauthenticate"))


def test_the_limits_count_from_the_first_use_of_an_old_session(dana: User, settings: Any) -> None:
    settings.SESSION_IDLE_HOURS, settings.SESSION_MAX_HOURS = 2, 10
    client = make.browser(dana)
    session = client.session
    del session[SIGNED_IN_AT]
    session[LIMITED_FROM] = clock.now().timestamp() - 9.5 * 3600
    session.save()
    end_at(client, clock.now() + timedelta(minutes=5))
    assert client.get("/board/").status_code == 200
    assert clock.now() + timedelta(minutes=20) < ends_at(client) <= clock.now() + timedelta(minutes=30)


def test_owner_ends_another_session(dana: User) -> None:
    here, there = sign_in(dana), sign_in(dana)
    assert len(listed(here)) == 2
    row = UserSession.objects.get(session_key=there.session.session_key)
    assert here.post(PAGE, {"session": row.pk}).status_code == 302
    assert there.get("/board/").status_code == 302
    assert here.get("/board/").status_code == 200
    assert len(listed(here)) == 1
    ended = Event.objects.get(kind="membership.sessions_ended")
    assert (ended.actor_id, ended.data["user_id"]) == (dana.pk, dana.pk)


def test_owner_ends_the_session_of_this_page(dana: User) -> None:
    client = sign_in(dana)
    (row,) = listed(client)
    assert client.post(PAGE, {"session": row.pk}).status_code == 302
    assert not is_signed_in(client)


def test_owner_ends_all_others_also_unlisted_ones(dana: User) -> None:
    here, there, unlisted = sign_in(dana), sign_in(dana), make.browser(dana)
    assert here.post(PAGE, {"others": "1"}).status_code == 302
    assert here.get("/board/").status_code == 200
    assert there.get("/board/").status_code == 302
    assert unlisted.get("/board/").status_code == 302
    assert [row.session_key for row in listed(here)] == [here.session.session_key]
    assert sign_in(dana).get("/board/").status_code == 200


def test_another_person_s_session_and_keys_cannot_be_ended(dana: User) -> None:
    organization = dana.memberships.get().organization
    victim = make.admin(organization)
    theirs = sign_in(victim)
    row = UserSession.objects.get(user=victim)
    key, _ = services.create_api_key(organization, "ERP", ["read"], actor=SYSTEM, created_by=victim)
    thief = sign_in(dana)
    for given in ({"session": row.pk}, {"key": key.pk}, {"session": "x"}, {"key": ""}, {}):
        assert thief.post(PAGE, given).status_code == 404
    assert theirs.get("/board/").status_code == 200
    assert ApiKey.objects.get(pk=key.pk).revoked_at is None
    shown = thief.get(PAGE).content.decode()
    assert key.prefix not in shown


def test_owner_revokes_a_key(dana: User) -> None:
    organization = dana.memberships.get().organization
    key, _ = services.create_api_key(organization, "ERP", ["read"], actor=SYSTEM, created_by=dana)
    client = sign_in(dana)
    assert key.prefix in client.get(PAGE).content.decode()
    client.post(PAGE, {"key": key.pk})
    assert ApiKey.objects.get(pk=key.pk).revoked_at is not None
    client.get(PAGE)  # the message names the key
    assert key.prefix not in client.get(PAGE).content.decode()


def test_admin_ends_the_sessions_of_a_colleague(dana: User) -> None:
    organization = dana.memberships.get().organization
    theirs, unlisted = sign_in(dana), make.browser(dana)
    boss = make.admin(organization)
    client = make.browser(boss)
    client.post(reverse("admin:accounts_user_end_sessions", args=[dana.pk]), CONFIRMED)
    assert theirs.get("/board/").status_code == 302
    assert unlisted.get("/board/").status_code == 302
    assert client.get("/board/").status_code == 200
    assert Event.objects.get(kind="membership.sessions_ended").actor_id == boss.pk
    assert sign_in(dana).get("/board/").status_code == 200


def test_new_password_from_a_link_ends_all_sessions(dana: User) -> None:
    listed_one, unlisted = sign_in(dana), make.browser(dana)
    visitor = Client()
    page = visitor.get(services.password_path(dana), follow=True)
    visitor.post(page.redirect_chain[-1][0], {"new_password1": CHOSEN, "new_password2": CHOSEN})
    assert not is_signed_in(listed_one)
    assert listed_one.get("/board/").status_code == unlisted.get("/board/").status_code == 302
    assert not UserSession.objects.filter(user=dana).exists()
    dana.refresh_from_db()
    assert dana.sessions_ended_at is not None
    assert Event.objects.filter(kind="membership.sessions_ended").count() == 1
    assert sign_in(dana, password=CHOSEN).get("/board/").status_code == 200


def test_person_who_changes_the_password_stays_signed_in_here_only(dana: User) -> None:
    here, there = sign_in(dana), sign_in(dana)
    page = {"old_password": make.PASSWORD, "new_password1": CHOSEN, "new_password2": CHOSEN}
    assert here.post("/admin/password_change/", page).url == "/admin/password_change/done/"
    assert here.get("/board/").status_code == 200
    assert there.get("/board/").status_code == 302
    assert [row.session_key for row in listed(here)] == [here.session.session_key]
    dana.refresh_from_db()
    assert dana.sessions_ended_at is not None


def test_pages_without_a_session_store_nothing() -> None:
    before = Session.objects.count()
    Client().get("/board/")
    Client().get(reverse("admin:login"))
    assert (Session.objects.count(), UserSession.objects.count()) == (before, 0)


def test_retention_deletes_expired_sessions(dana: User) -> None:
    old, used = sign_in(dana), sign_in(dana)
    end_at(old, clock.now() - timedelta(days=loops.SESSION_DAYS) - SECOND)
    UserSession.objects.filter(session_key=old.session.session_key).update(
        last_seen_at=clock.now() - loops.SIGN_IN_RETENTION - SECOND
    )
    loops.delete_old_sign_ins()
    loops.delete_expired_shared()
    assert list(Session.objects.values_list("pk", flat=True)) == [used.cookies["sessionid"].value]
    assert UserSession.objects.count() == 1


def test_extending_does_not_bring_an_ended_session_back(dana: User) -> None:
    client = sign_in(dana)
    client.get("/board/")
    store = client.session
    store.get(SIGNED_IN_AT)
    store.expires_at = clock.now()
    sessions.end_all_sessions(dana, actor=SYSTEM)
    sessions.extend_session(store)
    assert client.get("/board/").status_code == 302


def test_idle_session_ends_after_12_hours_unless_configured(dana: User) -> None:
    client = sign_in(dana)
    assert abs(ends_at(client) - clock.now() - timedelta(hours=12)) < timedelta(minutes=10)


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/140.0.0.0 Safari/537.36",
            "Chrome 140 on Linux",
        ),
        (
            "Mozilla/5.0 (Windows NT 10.0) AppleWebKit/537.36 Chrome/140 Safari/537.36 Edg/140.1",
            "Edge 140 on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18.0 Safari/604.1",
            "Safari 18 on iPhone",
        ),
        (
            "Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15) Firefox/141.0",
            "Firefox 141 on macOS",
        ),
        ("curl/8.5.0", "curl/8.5.0"),
        ("", ""),
    ],
)
def test_sessions_are_listed_by_browser_and_system(header: str, name: str) -> None:
    assert describe_user_agent(header) == name


def test_times_are_in_the_time_zone_of_the_organization(dana: User) -> None:
    organization = dana.memberships.get().organization
    client = sign_in(dana)
    at = datetime(2026, 1, 9, 3, 30, tzinfo=UTC)
    UserSession.objects.update(created_at=at, last_seen_at=at)
    services.create_api_key(organization, "ERP", ["read"], actor=SYSTEM, created_by=dana)
    ApiKey.objects.update(last_used_at=at)
    page = " ".join(client.get(PAGE).content.decode().split())
    assert "Since Jan 8, 2026, 20:30 MST, last used" in page
    assert "last used Jan 8, 2026, 20:30 MST" in page
    assert "UTC" not in page
    User.objects.filter(pk=dana.pk).update(language="es")
    assert "Desde el 8 de enero de 2026, 20:30 MST" in client.get(PAGE).content.decode()


def exchange_secret_keys(settings: Any) -> None:
    """Sign with another SECRET_KEY, and accept the former one as its fallback."""
    others = settings.SECRET_KEY_FALLBACKS or ["a new secret key that is long enough to be one"]
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = others[0], [settings.SECRET_KEY]


def test_requests_sent_with_one_cookie_stay_signed_in_after_another_secret_key(dana: User, settings: Any) -> None:
    client = sign_in(dana)
    cookie = client.cookies["sessionid"].value
    for _ in range(4):  # by processes that have restarted and by those that have not
        exchange_secret_keys(settings)
        client.cookies["sessionid"] = cookie
        assert client.get("/board/").status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    settings.SECRET_KEY = "a third secret key that is long enough to be one"
    assert client.get("/board/").status_code == 302


def test_the_list_of_sessions_ends_none_of_them_after_another_secret_key(dana: User, settings: Any) -> None:
    here, elsewhere = sign_in(dana), sign_in(dana)
    exchange_secret_keys(settings)
    assert len(listed(here)) == 2
    assert is_signed_in(elsewhere)


def test_a_sign_in_ends_no_other_session_after_another_secret_key(dana: User, settings: Any) -> None:
    here, elsewhere = sign_in(dana), sign_in(dana)
    exchange_secret_keys(settings)
    newest = sign_in(dana)
    assert is_signed_in(here)
    assert is_signed_in(elsewhere)
    assert len(listed(newest)) == 3


def test_a_sign_in_removes_the_rows_of_sessions_that_have_ended(dana: User) -> None:
    ended = sign_in(dana)
    end_at(ended, clock.now() - SECOND)
    newest = sign_in(dana)
    keys = UserSession.objects.filter(user=dana).values_list("session_key", flat=True)
    assert list(keys) == [newest.cookies["sessionid"].value]


def queries_of(act: Any) -> int:
    with CaptureQueriesContext(connection) as queries:
        act()
    return len(queries)


def test_cost_of_the_list_and_of_a_sign_in_does_not_grow_with_the_sessions(dana: User) -> None:
    here = sign_in(dana)
    listed(here)
    sign_in(dana)  # what only the first request reads
    few = queries_of(lambda: listed(here)), queries_of(lambda: sign_in(dana))
    for _ in range(5):
        sign_in(dana)
    assert (queries_of(lambda: listed(here)), queries_of(lambda: sign_in(dana))) == few
    assert len(listed(here)) == 9
    assert queries_of(lambda: sessions.end_all_sessions(dana, actor=SYSTEM)) < 9


def test_a_sign_in_ends_the_sessions_used_longest_ago_beyond_the_limit(
    dana: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 3)
    colleague = sign_in(make.dispatcher(dana.memberships.get().organization))
    oldest, used, idle, newest = [sign_in(dana) for _ in range(3)] + [Client()]
    for minutes, client in ((30, oldest), (5, used), (10, idle)):
        rows = UserSession.objects.filter(session_key=client.session.session_key)
        rows.update(last_seen_at=clock.now() - timedelta(minutes=minutes))
    sign_in(dana, newest)
    assert [is_signed_in(each) for each in (oldest, used, idle, newest)] == [False, True, True, True]
    assert oldest.get("/board/").status_code == 302
    assert is_signed_in(colleague)
    assert len(listed(used)) == 3
    sign_in(dana)
    assert [is_signed_in(each) for each in (used, idle, newest)] == [True, False, True]


def test_a_sign_in_lists_no_session_that_is_no_longer_valid(dana: User) -> None:
    former = sign_in(dana)
    User.objects.filter(pk=dana.pk).update(sessions_ended_at=clock.now())
    newest = sign_in(dana)
    assert [row.session_key for row in listed(newest)] == [newest.session.session_key]
    assert former.get("/board/").status_code == 302


def test_a_sign_in_does_not_end_another_one_that_is_under_way(dana: User) -> None:
    """A session is stored, still empty, and listed before the request that signs in has ended."""
    under_way = SessionStore()
    under_way.create()
    now = clock.now()
    UserSession.objects.create(user=dana, session_key=under_way.session_key, ip="127.0.0.1", last_seen_at=now)
    sign_in(dana)
    assert Session.objects.filter(pk=under_way.session_key).exists()
