"""The public form and what follows from it are in the customer's language."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from accounts.models import Organization
from dispatch.core import languages
from dispatch.core.models import Event
from dispatch.jobs import signed_links
from dispatch.jobs.models import CustomerTextPolicy, Job, Submission
from dispatch.jobs.services import start_job
from tests.harness.customer_texts import ALL, body
from tests.jobs.test_page_languages import is_spanish
from tests.jobs.test_public_form import Site
from tests.support import factories

pytestmark = pytest.mark.django_db
SPANISH = {"accept-language": "es-MX,es;q=0.9,en;q=0.8"}


@pytest.fixture
def site() -> Site:
    return Site()


def page(answer: Any) -> str:
    return str(answer.content.decode())


def test_form_is_in_the_language_of_the_browser(site: Site) -> None:
    site.browser = Client(headers=SPANISH)
    shown = page(site.open())
    assert is_spanish(shown)
    assert "¿En qué necesita ayuda?" in shown
    assert "Puede esperar un día o dos" in shown
    answer = site.send(name="", phone="12", postcode="00000")
    assert answer.status_code == 400
    shown = page(answer)
    assert is_spanish(shown)
    for error in (
        "Corrija los errores",
        "Este campo es ",
        "Escriba un código postal válido.",
        "teléfono válido",
    ):
        assert error in shown


@pytest.mark.parametrize(
    ("header", "organization", "language"),
    [
        ("", "en", "en"),
        ("", "es", "es"),
        ("de-DE,de;q=0.9", "es", "es"),
        ("en-US,en;q=0.9", "es", "en"),
        ("de,es-419;q=0.8,en;q=0.7", "en", "es"),
        ("ess,*;q=0.1", "en", "en"),
        ("\xff;q=x,,;", "es", "es"),
    ],
)
def test_language_of_the_form_falls_back(site: Site, header: str, organization: str, language: str) -> None:
    Organization.objects.filter(pk=site.organization.pk).update(language=organization)
    site.browser = Client(headers={"accept-language": header})
    assert f'<html lang="{language}">' in page(site.open())
    other = "en" if language == "es" else "es"
    assert f'<html lang="{other}">' in page(site.open(f"{site.address}?lang={other}"))
    assert f'<html lang="{language}">' in page(site.open(f"{site.address}?lang=xx"))
    assert '<option value="drain" selected>' in page(site.open(f"{site.address}?lang={other}&service=drain"))


def test_switch_of_the_form_keeps_what_was_entered(site: Site) -> None:
    site.open()
    entered = {"name": "Ana <3", "phone": "12", "notes": "La tubería gotea", "urgency": "1", "service": "drain"}
    answer = site.send(**entered, switch="es", language="en")
    shown = page(answer)
    assert answer.status_code == 200
    assert is_spanish(shown)
    assert 'role="alert"' not in shown
    assert 'value="Ana &lt;3"' in shown
    assert 'value="12"' in shown
    assert "La tubería gotea</textarea>" in shown
    assert '<option value="drain" selected>' in shown
    assert not Submission.objects.exists()
    assert '<html lang="en">' in page(site.send(switch="en", language="es"))


def test_what_follows_from_a_spanish_form_is_spanish(site: Site) -> None:
    CustomerTextPolicy.objects.create(organization=site.organization, **ALL)
    factories.number(site.organization, sends_texts=True)
    answer = site.send(language="es")
    thanks = site.browser.get(answer["Location"])
    assert is_spanish(page(thanks))
    status = thanks.context["status_url"]
    assert is_spanish(page(site.browser.get(status)))
    submission = Submission.objects.get()
    assert submission.language == "es"
    start_job(submission.pk, place=False)
    job = Job.objects.get()
    assert "recibimos su solicitud" in body(job, "received")
    refused = site.browser.post(status, {"do": "correct", "address": ""})
    assert is_spanish(page(refused))
    assert "Escriba la dirección." in page(refused)
    assert is_spanish(page(site.browser.post(status, {"do": "cancel"}, follow=True)))
    assert "su solicitud fue cancelada" in body(job, "cancelled")
    assert languages.is_english()


def test_customer_chooses_the_language_of_page_and_texts(site: Site) -> None:
    site.send(language="es")
    submission = Submission.objects.get()
    path = signed_links.status_path(submission.pk)
    assert 'name="language" value="en" lang="en">English</button>' in page(site.browser.get(path))
    site.browser.post(path, {"do": "language", "language": "en"})
    assert '<html lang="en">' in page(site.browser.get(path))
    submission.refresh_from_db()
    assert submission.customer_language == "en"
    changed = Event.objects.get(kind="submission.language_changed")
    assert (changed.subject_id, changed.data) == (submission.pk, {"language": "en"})
    assert site.browser.post(path, {"do": "language", "language": "xx"}).status_code == 400
    submission.refresh_from_db()
    assert submission.language == "en"


def test_request_of_unknown_language_is_shown_in_that_of_the_browser(site: Site) -> None:
    site.send()
    Submission.objects.update(language="")
    path = signed_links.status_path(Submission.objects.get().pk)
    assert is_spanish(page(Client(headers=SPANISH).get(path)))
    assert '<html lang="en">' in page(Client().get(path))
    assert is_spanish(page(Client(headers=SPANISH).get("/s/nonsense/")))


def test_rejected_forms_explain_in_the_language_of_the_form(site: Site) -> None:
    ticket = site.ticket()
    site.send(ticket, language="es")
    for rejected in (
        site.send(ticket, language="es", name="Another"),
        site.send("forged", language="es"),
        site.send(language="es", website="https://spam.example"),
    ):
        assert is_spanish(page(rejected))
