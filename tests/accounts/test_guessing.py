"""Password and key guessing is throttled, and other users are not affected."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt
from django.test import Client
from django.urls import reverse

from accounts import services
from accounts.auth import api_keys, throttling
from accounts.models import ApiKey
from dispatch.core.events import SYSTEM
from tests.api.client import Api
from tests.support import factories as make

pytestmark = pytest.mark.django_db


def sign_in(email: str, password: str = make.PASSWORD, address: str = "203.0.113.1") -> int:
    form = {"username": email, "password": password}
    return Client(REMOTE_ADDR=address).post(reverse("admin:login"), form).status_code


@pytest.fixture
def limit(settings: Any) -> int:
    settings.AXES_FAILURE_LIMIT = 2
    return 2


def test_guessing_many_names_blocks_the_address(limit: int) -> None:
    person = make.dispatcher(make.organization())
    answers = [sign_in(f"guess{n}@example.com", "a guess") for n in range(limit * 10 + 1)]
    assert answers[0] == 200
    assert answers[-1] == 429
    assert sign_in(person.email) == 429
    assert sign_in(person.email, address="198.51.100.7") == 302, "other users are not affected"


def test_guessing_from_many_addresses_of_one_network_blocks_the_network(limit: int) -> None:
    """One IPv6 client has a /64 network, and can send each guess from another address."""
    person = make.dispatcher(make.organization())
    answers = [sign_in(f"guess{n}@example.com", "a guess", f"2001:db8:1:1::{n:x}") for n in range(limit * 10 + 1)]
    assert answers[0] == 200
    assert answers[-1] == 429
    assert sign_in(person.email, address="2001:db8:1:1:ffff::1") == 429
    assert sign_in(person.email, address="2001:db8:1:2::1") == 302, "another network is not affected"


def test_guessing_from_a_mapped_address_blocks_only_that_address(limit: int) -> None:
    """Some proxies write an IPv4 address as ::ffff:192.0.2.1, which is not a separate network."""
    person = make.dispatcher(make.organization())
    for n in range(limit * 10 + 1):
        answer = sign_in(f"guess{n}@example.com", "a guess", "::ffff:192.0.2.1")
    assert answer == 429
    assert sign_in(person.email, address="192.0.2.1") == 429, "the same address"
    assert sign_in(person.email, address="::ffff:192.0.2.2") == 302, "another address"


def test_passkey_sign_ins_from_a_mapped_address_block_only_that_address(settings: Any) -> None:
    """django-allauth counts an IPv6 client by its /64 network, and all mapped addresses are in one."""
    settings.MFA_RATE_LIMITS = {"webauthn_login": "2/h/ip"}
    passkey = reverse("mfa_login_webauthn")

    def enter(address: str) -> int:
        return Client(REMOTE_ADDR=address).post(passkey, {"credential": "{}"}).status_code

    assert [enter("::ffff:192.0.2.1") for _ in range(3)] == [302, 302, 429]
    assert enter("192.0.2.1") == 429, "the same address"
    assert enter("::ffff:192.0.2.2") == 302, "another address"


def test_session_from_a_mapped_address_is_listed_with_the_ipv4_address() -> None:
    person = make.dispatcher(make.organization())
    assert sign_in(person.email, address="::ffff:192.0.2.1") == 302
    assert UserSession.objects.get(user=person).ip == "192.0.2.1"


def test_guessing_one_name_from_many_addresses_does_not_lock_out_the_owner(limit: int) -> None:
    person = make.dispatcher(make.organization())
    assert sign_in(person.email, address="198.51.100.7") == 302
    answers = [sign_in(person.email, "a guess", f"203.0.113.{n}") for n in range(limit * 5 + 1)]
    assert answers[0] == 200
    assert answers[-1] == 429
    assert sign_in(person.email, address="192.0.2.9") == 429, "also with the right password, from a new address"
    assert sign_in(person.email, address="198.51.100.7") == 302, "where they have been before"
    other = make.dispatcher(make.organization())
    assert sign_in(other.email, address="192.0.2.9") == 302


@pytest.mark.parametrize("given", [{"username": "a" * 300_000}, {"password": "b" * 300_000}])
def test_sign_in_with_overlong_values_is_refused_and_not_stored(given: dict[str, str]) -> None:
    answer = Client().post(reverse("admin:login"), {"username": "a@b.example", "password": "c", **given})
    assert answer.status_code == 200
    assert "The email or password is wrong." in answer.content.decode()
    assert not AccessAttempt.objects.exists()


def test_failed_sign_in_stores_nothing_that_was_sent_besides_the_name() -> None:
    address = f"{reverse('admin:login')}?next=/{'n' * 2000}"
    given = {"username": "a@b.example", "password": "a guess", "passwort": "a guess", "more": "m" * 300_000}
    for _ in range(2):
        assert Client().post(address, given).status_code == 200
    attempt = AccessAttempt.objects.get()
    assert (attempt.username, attempt.failures_since_start) == ("a@b.example", 2)
    assert len(attempt.get_data + attempt.post_data) < 60


@pytest.fixture
def three_a_minute(settings: Any) -> None:
    settings.API_BAD_KEY_RATE = "3/min"


@pytest.mark.usefixtures("three_a_minute")
def test_wrong_secrets_for_one_prefix_stop_being_looked_up(django_assert_num_queries: Any) -> None:
    organization = make.organization()
    whole = make.api_key(organization)
    wrong = whole[:-4] + "AAAA"
    assert [Api(key=wrong).get("me/").status_code for _ in range(4)] == [401, 401, 401, 429]
    with django_assert_num_queries(0):
        refused = Api(key=wrong).get("me/")
    assert refused.status_code == 429
    assert refused.json()["type"] == "urn:dispatch:problem:throttled"
    assert 1 <= int(refused["Retry-After"]) <= 20
    assert Api(key=make.api_key(organization)).get("me/").status_code == 200, "another key at the same address"
    elsewhere = Client(REMOTE_ADDR="198.51.100.7", headers={"Authorization": f"Bearer {whole}"})
    assert elsewhere.get("/api/v1/me/").status_code == 200, "the same key from another address"


@pytest.mark.usefixtures("three_a_minute")
def test_client_that_keeps_using_a_revoked_key_is_throttled() -> None:
    whole = make.api_key(make.organization())
    services.revoke_api_key(ApiKey.objects.get(prefix=api_keys.prefix_of(whole)).pk, actor=SYSTEM)
    assert [Api(key=whole).get("me/").status_code for _ in range(5)] == [401, 401, 401, 429, 429]


def test_valid_keys_are_never_throttled(settings: Any) -> None:
    settings.API_BAD_KEY_RATE = "1/day"
    api = Api(key=make.api_key(make.organization()))
    assert {api.get("me/").status_code for _ in range(5)} == {200}


def test_list_of_blocked_senders_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttling, "MAX_BLOCKED_SENDERS", 2)
    blocked = throttling.BlockedSenders()
    for sender in "abc":
        blocked.block(sender, 60)
    assert [blocked.wait_s(sender) > 0 for sender in "abc"] == [False, True, True]
