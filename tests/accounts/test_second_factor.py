"""The second factor: it cannot be skipped, guessed, replayed or turned off by somebody else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from cryptography.fernet import Fernet
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from accounts import services
from accounts.auth import second_factor
from accounts.models import Membership, Organization, User
from dispatch.core import crypto, reencryption
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.redis import client as redis
from dispatch.core.web.form_fields import BoundedJSONField
from tests.accounts.second_factor import (
    SET_UP,
    VERIFY,
    Steps,
    enter,
    held_back,
    is_signed_in,
    recovery_codes,
    secret_of,
    set_up_app,
    sign_in,
)
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db

CONFIRMED = {"_form_submitted": "True"}  # the dialog of an action


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


@pytest.fixture
def dana() -> User:
    return make.dispatcher(make.organization(), "Dana")


@pytest.fixture
def strict(dana: User) -> Organization:
    organization = dana.memberships.get().organization
    services.change_organization(organization.pk, {"requires_second_factor": True}, actor=SYSTEM)
    return organization


def test_code_is_asked_for_after_the_password_and_leads_to_the_page(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    client = sign_in(dana, path="/leads/")
    assert client.answer.url == reverse("mfa_authenticate")
    assert "Enter the code" in client.get(reverse("mfa_authenticate")).content.decode()
    assert not is_signed_in(client)
    code = steps.code(secret_of(dana))
    answer = enter(client, f" {code[:3]} {code[3:]} ")
    assert answer.url == "/leads/"
    assert is_signed_in(client)
    assert client.get("/board/").status_code == 200


@pytest.mark.parametrize(
    "path", ["/board/", "/admin/", "/admin/jobs/job/", "/account/second-factor/", "/account/sessions/"]
)
def test_password_alone_opens_no_page_of_a_person_with_a_second_factor(
    dana: User, steps: Steps, path: str
) -> None:
    set_up_app(dana, steps)
    client = sign_in(dana)
    assert client.get(path).status_code == 302
    assert not is_signed_in(client)
    assert client.get("/api/v1/me/").status_code == 401


def test_session_key_changes_with_the_second_factor(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    client = sign_in(dana)
    before = client.session.session_key
    enter(client, steps.code(secret_of(dana)))
    assert is_signed_in(client)
    assert client.session.session_key != before


def test_code_works_once(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    code = steps.code(secret_of(dana))
    enter(sign_in(dana), code)
    thief = sign_in(dana)
    assert enter(thief, code).status_code == 200
    steps.next()  # the tolerance still covers the code
    assert enter(thief, code).status_code == 200
    assert not is_signed_in(thief)
    assert enter(thief, steps.code(secret_of(dana))).status_code == 302, "the owner's next code"


def test_used_code_stays_used_without_the_cache_and_ends_those_before_it(dana: User, steps: Steps) -> None:
    """The library keeps used codes in Redis, which may lose them."""
    set_up_app(dana, steps)
    before = steps.code(secret_of(dana))
    steps.next()
    code = steps.code(secret_of(dana))
    enter(sign_in(dana), code)
    for name in redis.client().scan_iter(redis.key("cache", "*")):
        redis.client().delete(name)
    thief = sign_in(dana)
    for known in (code, before):  # both within the tolerance
        assert enter(thief, known).status_code == 200
    assert not is_signed_in(thief)


def test_code_that_set_up_the_app_does_not_sign_in(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    steps.number -= 1
    client = sign_in(dana)
    assert enter(client, steps.code(secret_of(dana))).status_code == 200
    assert not is_signed_in(client)


def test_guessing_codes_stops_after_five_also_with_the_right_one(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    right = steps.code(secret_of(dana))
    wrong = "000000" if right != "000000" else "000001"
    for guess in range(5):
        client = sign_in(dana)  # a new session does not start the count again
        assert enter(client, wrong).status_code == 200, guess
    assert "Too many" in enter(client, right).content.decode()
    assert not is_signed_in(client)
    other = make.dispatcher(make.organization())
    set_up_app(other, steps)
    client = sign_in(other)
    enter(client, steps.code(secret_of(other)))
    assert is_signed_in(client), "another person is not affected"


def test_replayed_code_counts_as_a_guess(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    code = steps.code(secret_of(dana))
    enter(sign_in(dana), code)
    thief = sign_in(dana)
    for _ in range(5):
        enter(thief, code)
    steps.next()
    assert "Too many" in enter(thief, steps.code(secret_of(dana))).content.decode()


def test_recovery_code_works_once_and_is_recorded(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    code = recovery_codes(dana)[0]
    client = sign_in(dana)
    enter(client, code)
    assert is_signed_in(client)
    assert code not in recovery_codes(dana)
    again = sign_in(dana)
    assert enter(again, code).status_code == 200
    assert not is_signed_in(again)
    assert Event.objects.filter(kind="membership.recovery_code_used").count() == 1


@pytest.mark.parametrize("code", ["١٢٣٤٥٦", "a" * 33, "", "é" * 6])
def test_nonsense_is_a_wrong_code(dana: User, steps: Steps, code: str) -> None:
    client = set_up_app(dana, steps)
    assert enter(sign_in(dana), code).status_code == 200
    assert client.post(reverse("mfa_reauthenticate"), {"code": code}).status_code == 200
    other = sign_in(make.dispatcher(make.organization()))
    assert other.post(reverse("mfa_activate_totp"), {"code": code}).status_code == 200


@pytest.mark.parametrize(
    "credential", ["", "1", "[]", "{}", '{"response": {}}', '{"response": {"userHandle": 1}}', "{"]
)
def test_nonsense_is_no_passkey(dana: User, steps: Steps, credential: str) -> None:
    client = set_up_app(dana, steps)
    given = {"credential": credential, "name": ""}
    assert Client().post(reverse("mfa_login_webauthn"), given).status_code == 302
    assert sign_in(dana).post(reverse("mfa_authenticate"), given).status_code == 200
    assert client.post(reverse("mfa_add_webauthn"), given).status_code == 200


def test_deactivated_person_does_not_pass_with_the_code(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    client = sign_in(dana)
    User.objects.filter(pk=dana.pk).update(is_active=False)
    enter(client, steps.code(secret_of(dana)))
    assert client.get("/board/").status_code == 302


@pytest.mark.usefixtures("strict")
def test_member_without_a_second_factor_can_only_set_one_up_and_sign_out(dana: User) -> None:
    client = sign_in(dana)
    for path in (
        "/",
        "/board/",
        "/leads/",
        "/admin/",
        "/admin/jobs/job/",
        "/account/sessions/",
        "/admin/password_change/",
    ):
        assert held_back(client, SET_UP, path), path
    assert client.post("/board/", {}).url == reverse("mfa_index")
    assert client.get("/board/", headers={"HX-Request": "true"})["HX-Redirect"] == reverse("mfa_index")
    refused = client.get("/api/v1/me/")
    assert (refused.status_code, refused.json()["type"]) == (403, "urn:dispatch:problem:second_factor_required")
    assert client.get("/api/v1/me/", headers={"Authorization": ""}).status_code == 403
    page = client.get(reverse("mfa_index"))
    assert "You need a second factor" in page.content.decode()
    assert client.get(reverse("mfa_activate_totp")).status_code == 200
    assert client.post(reverse("account_logout")).status_code == 302
    assert not is_signed_in(client)


@pytest.mark.usefixtures("strict")
def test_setting_it_up_opens_the_session(dana: User, steps: Steps) -> None:
    client = set_up_app(dana, steps)
    assert client.get("/board/").status_code == 200
    assert client.get("/api/v1/me/").status_code == 200
    shown = client.get(reverse("mfa_view_recovery_codes")).content.decode()
    assert all(code in shown for code in recovery_codes(dana))
    added = Event.objects.get(kind="membership.second_factor_added")
    assert (added.actor_id, added.data["factor"]) == (dana.pk, "totp")


def test_members_of_other_organizations_are_not_held_back(strict: Organization) -> None:
    assert sign_in(make.dispatcher(make.organization())).get("/board/").status_code == 200


def test_api_keys_are_not_affected(strict: Organization) -> None:
    assert Api(key=make.api_key(strict)).get("me/").status_code == 200


def test_sessions_from_before_the_set_up_must_enter_the_code(dana: User, steps: Steps) -> None:
    other = sign_in(dana)
    set_up_app(dana, steps)
    assert held_back(other, VERIFY)
    assert other.get(reverse("mfa_activate_totp")).status_code == 302
    assert other.get("/api/v1/me/").status_code == 403
    code = steps.code(secret_of(dana))
    answer = other.post(reverse("mfa_reauthenticate"), {"code": code, "next": "/board/"})
    assert answer.url == "/board/"
    assert other.get("/board/").status_code == 200


def test_superusers_need_one_where_the_setting_says_so(settings: Any) -> None:
    root = make.user("Root", is_superuser=True)
    client = sign_in(root)
    assert client.get("/admin/").status_code == 200, "not in development"
    settings.SECOND_FACTOR_FOR_SUPERUSERS = True
    assert held_back(client, SET_UP, "/admin/")


def test_turning_it_off_needs_the_password_again(dana: User, steps: Steps) -> None:
    client = set_up_app(dana, steps)
    session = client.session
    session["signed_in_at"] -= 3600
    session.save()
    off = reverse("mfa_deactivate_totp")
    assert client.post(off).url.startswith(reverse("account_reauthenticate"))
    assert Authenticator.objects.filter(user=dana, type="totp").exists()
    assert client.post(reverse("account_reauthenticate"), {"password": "a guess"}).status_code == 200
    client.post(reverse("account_reauthenticate"), {"password": make.PASSWORD, "next": off})
    client.post(off)
    assert not Authenticator.objects.filter(user=dana).exists(), "nor recovery codes"
    assert sign_in(dana).get("/board/").status_code == 200
    assert Event.objects.filter(kind="membership.second_factor_removed").count() == 1


def test_guessing_the_password_again_locks_out_like_signing_in(dana: User, settings: Any) -> None:
    settings.AXES_FAILURE_LIMIT = 3
    client = sign_in(dana)
    answers = [
        client.post(reverse("account_reauthenticate"), {"password": "a guess"}).status_code for _ in range(4)
    ]
    assert answers[0] == 200
    assert answers[-1] == 429


@pytest.mark.usefixtures("strict")
def test_required_factor_cannot_be_turned_off(dana: User, steps: Steps) -> None:
    client = set_up_app(dana, steps)
    assert "You need a second factor here" in client.post(reverse("mfa_deactivate_totp")).content.decode()
    assert Authenticator.objects.filter(user=dana, type="totp").exists()


@pytest.mark.usefixtures("strict")
def test_the_last_passkey_stays_where_a_factor_is_required(dana: User, steps: Steps) -> None:
    client = set_up_app(dana, steps)
    first, second = (
        Authenticator.objects.create(user=dana, type=Authenticator.Type.WEBAUTHN, data={"name": name})
        for name in ("First", "Second")
    )
    Authenticator.objects.filter(user=dana, type=Authenticator.Type.TOTP).delete()
    assert client.post(reverse("mfa_remove_webauthn", args=[first.pk])).status_code == 302
    answer = client.post(reverse("mfa_remove_webauthn", args=[second.pk]), follow=True)
    assert "You need a second factor here" in answer.content.decode()
    assert list(second_factor.factors_of(dana)) == [second]
    assert client.get("/board/").status_code == 200


def test_the_last_passkey_can_be_removed_where_no_factor_is_required(dana: User) -> None:
    client = sign_in(dana)
    only = Authenticator.objects.create(user=dana, type=Authenticator.Type.WEBAUTHN, data={"name": "Only"})
    assert client.post(reverse("mfa_remove_webauthn", args=[only.pk])).status_code == 302
    assert not Authenticator.objects.filter(user=dana).exists()


def test_a_former_members_open_session_does_not_keep_another_person_out(dana: User, steps: Steps) -> None:
    set_up_app(dana, steps)
    former = make.dispatcher(make.organization())
    browser = sign_in(former)
    services.remove_member(former.memberships.get().pk, actor=SYSTEM)
    sign_in(dana, client=browser)
    assert not is_signed_in(browser)
    assert enter(browser, steps.code(secret_of(dana))).status_code == 302
    assert browser.session["_auth_user_id"] == str(dana.pk)
    assert browser.get("/board/").status_code == 200


def test_a_former_members_open_session_does_not_prevent_the_passkey() -> None:
    former = make.dispatcher(make.organization())
    browser = sign_in(former)
    page = reverse("mfa_login_webauthn")
    asked = {"X-Requested-With": "XMLHttpRequest"}
    assert "request_options" not in browser.get(page, headers=asked).json(), "a member is signed in"
    services.remove_member(former.memberships.get().pk, actor=SYSTEM)
    assert browser.get(page, headers=asked).json()["request_options"]
    assert not is_signed_in(browser)


def test_secrets_are_encrypted_and_follow_the_keys(dana: User, steps: Steps, settings: Any) -> None:
    old = Fernet.generate_key().decode()
    settings.FIELD_ENCRYPTION_KEYS = [old]
    set_up_app(dana, steps)
    secret, codes = secret_of(dana), recovery_codes(dana)
    stored = json.dumps(list(Authenticator.objects.filter(user=dana).values_list("data", flat=True)))
    assert secret not in stored
    settings.FIELD_ENCRYPTION_KEYS = [Fernet.generate_key().decode(), old]
    found = {report.name: report for report in reencryption.reencrypt_columns()}
    for name in ("secret", "seed"):
        report = found[f"mfa.Authenticator.data.{name}"]
        assert (report.values, report.under_old_keys, report.left) == (1, 1, 0)
    assert all(
        crypto.is_under_first_key(row.data.get("secret") or row.data["seed"])
        for row in Authenticator.objects.all()
    )
    settings.FIELD_ENCRYPTION_KEYS = settings.FIELD_ENCRYPTION_KEYS[:1]
    assert (secret_of(dana), recovery_codes(dana)) == (secret, codes)


def test_admin_resets_a_lost_factor_and_ends_the_sessions(dana: User, steps: Steps) -> None:
    organization = dana.memberships.get().organization
    owner = set_up_app(dana, steps)
    boss = make.browser(make.admin(organization))
    reset = reverse("admin:accounts_user_reset_second_factor", args=[dana.pk])
    boss.post(reset, CONFIRMED)
    dana.refresh_from_db()
    assert dana.second_factor_at is None
    assert not Authenticator.objects.filter(user=dana).exists()
    assert owner.get("/board/").status_code == 302
    assert is_signed_in(sign_in(dana))
    kinds = set(Event.objects.filter(organization_id=organization.pk).values_list("kind", flat=True))
    assert {"membership.second_factor_reset", "membership.sessions_ended"} <= kinds


@pytest.mark.parametrize("action", ["reset_second_factor", "end_sessions"])
def test_only_admins_of_a_persons_only_organization_reset(dana: User, steps: Steps, action: str) -> None:
    owner = set_up_app(dana, steps)
    organization = dana.memberships.get().organization
    url = reverse(f"admin:accounts_user_{action}", args=[dana.pk])
    stranger = make.admin(make.organization())
    make.browser(stranger).post(url, CONFIRMED)
    make.browser(make.dispatcher(organization)).post(url, CONFIRMED)
    Membership.objects.create(user=dana, organization=make.organization(), role="dispatcher")
    make.browser(make.admin(organization)).post(url, CONFIRMED)
    assert owner.get("/board/").status_code == 200
    assert User.objects.get(pk=dana.pk).second_factor_at is not None


@pytest.mark.parametrize("action", ["reset_second_factor", "end_sessions", "new_password_link"])
def test_invitation_elsewhere_takes_no_right_from_the_admin(dana: User, action: str) -> None:
    organization = dana.memberships.get().organization
    link = services.password_path(dana)
    theirs, _ = services.add_member(
        make.organization("Theirs"), email=dana.email, name="Dana", role="dispatcher", actor=SYSTEM
    )
    boss = make.browser(make.admin(organization))
    assert boss.post(reverse(f"admin:accounts_user_{action}", args=[dana.pk]), CONFIRMED).status_code == 200
    kinds = {"reset_second_factor": "second_factor_reset", "end_sessions": "sessions_ended"}
    kind = f"membership.{kinds.get(action, 'password_link_created')}"
    assert Event.objects.filter(organization_id=organization.pk, kind=kind).exists()
    if action == "new_password_link":
        assert Client().get(link).status_code == 302, "a link from before works as well"
    stranger = make.browser(make.admin(theirs.organization))
    url = reverse(f"admin:accounts_user_{action}", args=[dana.pk])
    assert stranger.post(url, CONFIRMED).status_code in (302, 404), "the inviting organization has none"


def test_no_other_page_of_the_library_is_served() -> None:
    for path in ("signup/", "password/reset/", "email/", "confirm-email/", "password/change/", "login/code/"):
        assert Client().get(f"/account/{path}").status_code == 404


def test_mark_of_one_person_does_not_count_for_another(dana: User, steps: Steps) -> None:
    client = set_up_app(dana, steps)
    mark = client.session[second_factor.SESSION_KEY]
    other = make.dispatcher(make.organization())
    set_up_app(other, steps)
    browser = make.browser(other)
    session = browser.session
    session[second_factor.SESSION_KEY] = mark
    session.save()
    assert held_back(browser, VERIFY)


HOSTILE_CREDENTIALS = [
    "9" * 5000,
    '{"a":' * 5000,
    "[" * 100_000,
    '{"id": "' + "x" * 200_000 + '"}',
    "null",
    "[]",
    "{}",
]


@pytest.mark.parametrize("page", ["mfa_login_webauthn", "mfa_add_webauthn", "mfa_reauthenticate_webauthn"])
def test_credential_of_any_form_is_no_server_error(dana: User, steps: Steps, page: str) -> None:
    client = Client(raise_request_exception=False)
    if page != "mfa_login_webauthn":
        client = make.browser(dana)
        client.raise_request_exception = False
    for credential in HOSTILE_CREDENTIALS:
        answer = client.post(reverse(page), {"credential": credential, "name": "key"})
        assert answer.status_code < 500, credential[:20]
    assert not Authenticator.objects.exists()


def test_headers_of_an_endpoint_are_bounded() -> None:
    field = BoundedJSONField(required=False)
    assert field.clean('{"Authorization": "Bearer x"}') == {"Authorization": "Bearer x"}
    assert field.clean("") is None
    for hostile in HOSTILE_CREDENTIALS[:4]:
        with pytest.raises(ValidationError):
            field.clean(hostile)
