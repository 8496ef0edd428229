"""The console is in the language of the person, else of the browser, else of the organization."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import User
from dispatch.core import events, languages
from dispatch.jobs.reasons import translate_reason
from notifications.consumers import NotificationsConsumer
from notifications.models import Notification
from tests.support.tenants import Tenant
from tests.unmarked_texts import find_unmarked, unmarked_in_module, unmarked_in_script, unmarked_in_template

pytestmark = pytest.mark.django_db

Browser = Callable[..., Client]
SETTINGS = "/notifications/choices/"


def language_of(answer: Any) -> str:
    found = re.search(r'<html lang="([^"]*)"', answer.content.decode())
    assert found, answer.content[:300]
    return found[1]


def speak(person: User, language: str) -> User:
    User.objects.filter(pk=person.pk).update(language=language)
    person.refresh_from_db()
    return person


@pytest.mark.parametrize(
    ("own", "accepted", "office", "shown"),
    [
        ("es", "en-US", "en", "es"),
        ("en", "es-MX", "es", "en"),
        ("", "es-MX,es;q=0.9,en;q=0.8", "en", "es"),
        ("", "fr-CA,en;q=0.5", "es", "en"),
        ("", "fr", "es", "es"),
        ("", "", "en", "en"),
        ("", "\x01;;q=x,es;q=y", "en", "en"),
    ],
)
def test_page_is_in_own_then_browser_s_then_office_s_language(
    ours: Tenant, browser: Browser, own: str, accepted: str, office: str, shown: str
):
    ours.organization.language = office
    ours.organization.save()
    client = browser(speak(ours.dispatcher, own))
    answer = client.get(
        reverse("console:notifications"), headers={"Accept-Language": accepted} if accepted else {}
    )
    assert language_of(answer) == shown
    assert ("script-texts" in answer.content.decode()) == (shown == "es")
    assert languages.active() == "en"  # nothing leaks into the next request


def test_choice_in_the_header_reloads_the_page_in_that_language(ours: Tenant, browser: Browser):
    client = browser(ours.dispatcher)
    page = f"http://testserver{reverse('console:board')}?q=12"
    answer = client.post(
        reverse("console:own_language"), {"language": "es", "stay": "1"}, headers={"Referer": page}
    )
    assert (answer.status_code, answer["Location"]) == (302, page)
    assert language_of(client.get(reverse("console:notifications"))) == "es"
    answer = client.post(reverse("console:own_language"), {"language": "en"}, follow=True)
    assert "Language saved." in answer.content.decode()
    assert client.post(reverse("console:own_language"), {"language": "de"}).status_code == 400
    ours.dispatcher.refresh_from_db()
    assert ours.dispatcher.language == "en"


def test_sign_in_page_follows_the_browser(client: Client):
    spanish = client.get(reverse("admin:login"), headers={"Accept-Language": "es-419"})
    assert language_of(spanish) == "es"
    refused = client.post(
        reverse("admin:login"), {"username": "a@b.c", "password": "x"}, headers={"Accept-Language": "es"}
    )
    assert (
        "El correo o la contraseña es incorrecto. Revise ambos e inténtelo de nuevo." in refused.content.decode()
    )


def test_two_people_in_one_process_each_read_their_own_language(ours: Tenant, browser: Browser):
    spanish, english = browser(speak(ours.dispatcher, "es")), browser(ours.admin)
    found: dict[str, set[str]] = {"es": set(), "en": set()}
    for _ in range(3):
        found["es"].add(language_of(spanish.get(reverse("console:notifications"))))
        found["en"].add(language_of(english.get(reverse("console:notifications"))))
    assert found == {"es": {"es"}, "en": {"en"}}


def test_active_language_belongs_to_its_thread():
    seen: list[str] = []
    with languages.override("es"):
        other = threading.Thread(target=lambda: seen.append(languages.active()))
        other.start()
        other.join()
    assert seen == ["en"]


def test_requests_with_a_key_stay_in_english(ours: Tenant, client: Client):
    answer = client.get("/api/v1/jobs/", headers={"Authorization": "Bearer nothing", "Accept-Language": "es"})
    assert answer.status_code == 401
    assert "key" in answer.content.decode()


def test_numbers_and_date_inputs_in_spanish_suit_attributes():
    from django.utils import formats

    with languages.override("es"):
        assert formats.localize(4.5) == "4.5"
        assert formats.get_format("DATE_INPUT_FORMATS")[0] == "%Y-%m-%d"


def test_unmarked_texts_are_found():
    template = '<b title="{{ a }} is here">{% translate "Jobs" %} of {{ x|default:"No name" }}</b>'
    template += "<svg><title>Icon</title></svg><kbd>Ctrl</kbd>"
    assert unmarked_in_template(template) == ["1 is here", "of 1", "No name"]
    assert unmarked_in_template('{{ x|default:_("No name") }} {{ y|yesno:"on,off"|upper }}') == ["on,off"]
    script = 'D.note("It is gone"); T.get("Marked {a}", { a: f("x") }); x.className = "button plain"'
    script += " // a comment of words"
    assert unmarked_in_script(script) == ["It is gone"]


def test_unmarked_refusals_are_found():
    source = """
raise Conflict("It has changed.")
raise ValidationError({"name": f"At most {most} letters."}, code="too long for a name")
raise ValidationError({"name": _("Enter a name."), "kind": [mark("Choose one."), "Two words"]})
messages.success(request, "Saved it.")
raise ValueError("No text for people.")
class Refused(Unprocessable):
    default_detail = "It is refused."
    default_code = "refused"
errors["name"] = "Enter a name."
errors["kind"] = _("Choose one.") if kind else text
found["name"] = "No error."
"""
    found = ["It has changed.", "At most 1 letters.", "Two words", "Saved it.", "It is refused.", "Enter a name."]
    assert sorted(unmarked_in_module(source)) == sorted(found)


def test_marked_errors_are_no_unmarked_refusals():
    source = 'errors["name"] = _("Enter {most} letters.").format(most=most)'
    assert unmarked_in_module(source) == []


def test_texts_of_the_console_are_marked():
    assert find_unmarked() == []


def test_socket_and_api_send_notifications_in_the_page_s_language(ours: Tenant, client: Client):
    event = events.append(ours.organization.pk, "job.cannot_make_it", 12)
    row = Notification.objects.create(
        organization=ours.organization,
        user=ours.dispatcher,
        event_id=event.pk,
        kind="job.cannot_make_it",
        subject_type="job",
        subject_id=12,
        title="Job 12: Bob can't make it",
    )
    ours.sign_in(client, speak(ours.dispatcher, "es"))
    shown = client.get(f"/api/v1/notifications/{row.pk}/").json()
    assert shown["title"] == "Trabajo 12: Bob no puede ir"
    speak(ours.dispatcher, "en")
    assert client.get(f"/api/v1/notifications/{row.pk}/").json()["title"] == row.title
    socket = NotificationsConsumer()
    socket.language = "es"
    assert socket._serialize([row])[0]["title"] == "Trabajo 12: Bob no puede ir"
    assert languages.active() == "en"


def test_reasons_are_translated_by_parts():
    with languages.override("es"):
        assert translate_reason("4.2 mi, qualified") == "4.2 mi, calificado"
        assert translate_reason("off shift until Mon 07:00") == "fuera de turno hasta el lun 07:00"
        assert translate_reason("missing skill: gas, HVAC") == "falta la habilidad: gas, HVAC"
        assert translate_reason("something else") == "something else"
    assert translate_reason("off duty") == "off duty"
