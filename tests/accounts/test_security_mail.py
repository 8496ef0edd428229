"""Users get emails about changes of their sign-in, and the event log records the changes."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.mfa.recovery_codes.internal import flows
from django.core import mail
from django.test import Client
from django.urls import reverse

from accounts import personal, services
from accounts.auth import security_mail
from accounts.models import SecurityMail, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.privacy.personal_data import DataSubject
from tests.accounts.second_factor import Steps, enter, recovery_codes, secret_of, set_up_app, sign_in
from tests.support import factories as make

pytestmark = pytest.mark.django_db


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    monkeypatch.setattr(flows, "transaction", SimpleNamespace(on_commit=lambda record: record()))
    return Steps(monkeypatch)


@pytest.fixture
def dana() -> User:
    return make.dispatcher(make.organization(), "Dana")


def kinds() -> list[str]:
    """Return the kinds of the emails that wait, and clear them."""
    found = list(SecurityMail.objects.order_by("pk").values_list("kind", flat=True))
    SecurityMail.objects.all().delete()
    return found


def send() -> Any:
    """Send what is due and return the only email."""
    security_mail.send_due_mail()
    (sent,) = mail.outbox
    return sent


def test_new_browser_is_reported_once(dana: User) -> None:
    client = sign_in(dana)
    assert kinds() == ["new_device"]
    client.post("/account/logout/")
    sign_in(dana, client)
    assert kinds() == []
    sign_in(dana)
    assert kinds() == ["new_device"]
    assert Event.objects.filter(kind="membership.signed_in_from_new_device").count() == 2


def test_another_person_s_or_a_forged_device_is_not_known(dana: User) -> None:
    client = sign_in(make.dispatcher(make.organization()))
    client.post("/account/logout/")
    kinds()
    sign_in(dana, client)
    assert kinds() == ["new_device"]
    forged = Client()
    forged.cookies["known_device"] = f"[{dana.pk}]"
    sign_in(dana, forged)
    assert kinds() == ["new_device"]
    cookie = forged.cookies["known_device"]
    assert cookie["httponly"]
    assert cookie["samesite"] == "Lax"


def test_app_codes_and_their_use_are_reported(dana: User, steps: Steps) -> None:
    client = set_up_app(dana, steps)
    secret, codes = secret_of(dana), recovery_codes(dana)
    assert kinds() == ["new_device", "totp_added", "recovery_codes_created"]
    client.post(reverse("mfa_generate_recovery_codes"))
    assert kinds() == ["recovery_codes_created"]
    codes = recovery_codes(dana)
    enter(sign_in(dana), codes[0])
    assert kinds() == ["recovery_code_used", "new_device"]
    client.post(reverse("mfa_deactivate_totp"))
    assert not Authenticator.objects.filter(user=dana, type="totp").exists()
    security_mail.send_due_mail()
    text = "".join(f"{each.subject}{each.body}" for each in mail.outbox)
    assert "removed" in text
    assert secret not in text
    assert not any(code in text for code in codes)
    assert Event.objects.filter(kind="membership.recovery_codes_created").count() == 2


def test_password_and_reset_are_reported(dana: User) -> None:
    dana.set_password("a new one for tests")
    dana.save()
    services.reset_second_factor(dana, actor=SYSTEM)
    assert kinds() == ["password_changed", "second_factor_reset"]
    assert Event.objects.get(kind="membership.password_changed").data["user_id"] == dana.pk
    dana.name = "Dana W."
    dana.save()
    assert kinds() == []


def test_password_link_reports_where_it_was_used(dana: User, settings: Any) -> None:
    client = Client(headers={"User-Agent": "Firefox on a phone"})
    page = client.get(services.password_path(dana), follow=True)
    chosen = "three blind llamas"
    client.post(page.redirect_chain[-1][0], {"new_password1": chosen, "new_password2": chosen})
    sent = send()
    assert sent.to == [dana.email]
    assert "password of your account was changed" in sent.body
    assert "Browser: Firefox on a phone" in sent.body
    assert "127.0.0.1" in sent.body
    assert "If this was not you" in sent.body
    assert f"{settings.PUBLIC_BASE_URL}/account/sessions/" in sent.body
    assert chosen not in sent.body
    assert not SecurityMail.objects.exists()


def test_mail_is_in_the_language_of_the_organization(settings: Any) -> None:
    person = make.dispatcher(make.organization(language="es"))
    security_mail.enqueue_mail(person, "webauthn_added")
    sent = send()
    assert sent.subject == "Dispatch: Se agregó una clave de acceso a su cuenta"
    assert "Si no fue usted" in sent.body


def test_mail_is_in_the_person_s_own_language(settings: Any) -> None:
    person = make.dispatcher(make.organization())
    User.objects.filter(pk=person.pk).update(language="es")
    security_mail.enqueue_mail(person, "webauthn_added")
    assert send().subject == "Dispatch: Se agregó una clave de acceso a su cuenta"


def test_unknown_kind_neither_delays_the_others_nor_stays(dana: User) -> None:
    attempts = security_mail.MAX_ATTEMPTS - 1
    SecurityMail.objects.create(user=dana, kind="of_a_later_version", attempts=attempts)
    security_mail.enqueue_mail(dana, "new_device")
    assert "New sign-in" in send().subject
    assert not SecurityMail.objects.exists()


def test_each_kind_can_be_written(dana: User) -> None:
    for kind in security_mail.SUBJECTS:
        subject, text = security_mail.render_mail(SecurityMail(user=dana, kind=kind))
        assert "\n" not in subject
        expected = "/notifications/choices/?in=" if kind == security_mail.PHONE_REMINDER else "If this was not you"
        assert expected in text


def test_unavailable_mail_server_delays_and_finally_drops(dana: User, settings: Any) -> None:
    settings.EMAIL_BACKEND = "tests.accounts.test_security_mail.Unavailable"
    security_mail.enqueue_mail(dana, "new_device")
    for attempt in range(1, security_mail.MAX_ATTEMPTS):
        assert security_mail.send_due_mail() is None
        row = SecurityMail.objects.get()
        assert row.attempts == attempt
        assert row.next_attempt_at > clock.now()
        security_mail.send_due_mail()
        assert SecurityMail.objects.get().attempts == attempt, "not before its time"
        SecurityMail.objects.update(next_attempt_at=clock.now() - timedelta(seconds=1))
    security_mail.send_due_mail()
    assert not SecurityMail.objects.exists()


class Unavailable:
    """A mail server that refuses everything."""

    def __init__(self, **options: Any) -> None:
        pass

    def send_messages(self, messages: Any) -> int:
        raise ConnectionRefusedError("no mail server")


def test_without_a_mail_server_nothing_waits(dana: User, settings: Any) -> None:
    settings.EMAIL_IS_SET_UP = False
    security_mail.enqueue_mail(dana, "new_device")
    assert not SecurityMail.objects.exists()


def test_erasure_deletes_waiting_mail(dana: User) -> None:
    make.admin(dana.memberships.get().organization)
    security_mail.enqueue_mail(dana, "new_device")
    personal.erase(DataSubject(dana.memberships.get().organization_id, user_id=dana.pk))
    assert not SecurityMail.objects.exists()
