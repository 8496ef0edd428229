"""Sign in as a browser does, and read codes as an authenticator app does, on a clock that the test moves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from allauth.mfa.totp.internal import flows
from django.test import Client
from django.urls import reverse

from accounts.auth import second_factor
from accounts.models import User
from dispatch.core import crypto
from tests.support import factories as make

SET_UP, VERIFY = "mfa_index", "mfa_reauthenticate"


class Steps:
    """The clock of TOTP codes. A set-up is recorded at once, although the test's transaction stays open."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.number = 59_000_000
        monkeypatch.setattr(flows, "transaction", SimpleNamespace(on_commit=lambda record: record()))
        monkeypatch.setattr(second_factor, "current_step", lambda: self.number)
        monkeypatch.setattr(
            totp, "yield_hotp_counters_from_time", lambda: iter((self.number - 1, self.number, self.number + 1))
        )

    def next(self) -> None:
        self.number += 1

    def code(self, secret: str) -> str:
        return totp.format_hotp_value(totp.hotp_value(secret, self.number))


def sign_in(person: User, client: Client | None = None, password: str = make.PASSWORD, path: str = "") -> Client:
    """Enter email and password. The answer is `client.answer`."""
    client = client or Client()
    target = reverse("admin:login") + (f"?next={path}" if path else "")
    client.answer = client.post(target, {"username": person.email, "password": password})  # type: ignore[attr-defined]
    return client


def is_signed_in(client: Client) -> bool:
    return "_auth_user_id" in client.session


def secret_of(person: User) -> str:
    row = Authenticator.objects.get(user=person, type=Authenticator.Type.TOTP)
    return crypto.decrypt(row.data["secret"])


def set_up_app(person: User, steps: Steps, client: Client | None = None) -> Client:
    """Sign in, set up an authenticator app, and move to the next code. Return the browser."""
    client = client or sign_in(person)
    page = client.get(reverse("mfa_activate_totp"))
    assert page.status_code == 200, page.headers
    answer = client.post(reverse("mfa_activate_totp"), {"code": steps.code(page.context["form"].secret)})
    assert answer.status_code == 302, answer.content.decode()
    steps.next()
    person.refresh_from_db()
    return client


def enter(client: Client, code: str) -> Any:
    """Enter a code during sign-in."""
    return client.post(reverse("mfa_authenticate"), {"code": code})


def held_back(client: Client, page: str, path: str = "/board/") -> bool:
    """Return whether the session is sent to this page instead of the path."""
    answer = client.get(path)
    return answer.status_code == 302 and answer.url.partition("?")[0] == reverse(page)


def recovery_codes(person: User) -> list[str]:
    row = Authenticator.objects.get(user=person, type=Authenticator.Type.RECOVERY_CODES)
    codes: list[str] = row.wrap().get_unused_codes()
    return codes
