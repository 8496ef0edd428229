"""The pages behind signed links speak the language of the customer's organization, or of the technician."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from django.test import Client
from django.utils.html import strip_tags

from accounts.models import Organization
from dispatch.core import languages
from dispatch.core.models import Event
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician
from tests.jobs.test_threads import MARIA, Desk
from tests.translations import marked_messages

pytestmark = pytest.mark.django_db
# Sentences of these pages that no name or address of a test contains.
ENGLISH = {
    message
    for message, place in marked_messages().items()
    if place.startswith(("templates/pages", "dispatch/jobs/public", "dispatch/jobs/services/customer"))
    and len(message) > 9
    and "{" not in message
    and "%(" not in message
}


@pytest.fixture
def desk() -> Desk:
    made = Desk()
    Organization.objects.filter(pk=made.organization.pk).update(language="es")
    made.organization.refresh_from_db()
    return made


def shown(url: str, **form: str) -> str:
    """The page as it is after a GET, or after the POST of the form."""
    client, path = Client(), urlsplit(url).path
    answer = client.post(path, form, follow=True) if form else client.get(path)
    assert answer.status_code in (200, 400, 409), answer.content
    return answer.content.decode()


def is_spanish(page: str) -> bool:
    """Whether the page says so, and contains none of our English sentences."""
    words = " ".join(strip_tags(page).replace("&#x27;", "'").split())
    assert not [sentence for sentence in ENGLISH if sentence in words]
    return '<html lang="es">' in page


def customer_page(job: Job) -> str:
    return signed_links.status_path(job.submission_id)


def test_customer_page_is_in_the_language_of_the_organization(desk: Desk) -> None:
    job = desk.job()
    page = shown(customer_page(job))
    assert is_spanish(page)
    assert "Estamos llamando a técnicos" in page
    assert 'data-hint="Esta página se actualiza cada 15 segundos.' in page
    services.assign(job.pk, desk.ann.pk, actor=MARIA, confirm_unfit=True)
    assert "Ann atenderá su solicitud" in shown(customer_page(job))
    services.report_late(job.pk, 20, actor=MARIA)
    page = shown(customer_page(job))
    assert is_spanish(page)
    assert "Ann lleva unos 20 minutos de retraso" in page


def test_customer_is_answered_in_spanish_and_the_log_stays_english(desk: Desk) -> None:
    job = desk.assigned()
    page = shown(customer_page(job), do="correct", address="")
    assert is_spanish(page)
    assert "Corrija los errores que siguen." in page
    assert "Escriba la dirección." in page
    page = shown(customer_page(job), do="cancel", reason="")
    assert is_spanish(page)
    assert f"Si no lo esperaba, llame a {desk.organization.name}." in page
    assert Event.objects.get(kind="job.cancelled").data["reason"] == "by the customer"
    assert "Su solicitud fue cancelada. Si no lo esperaba" in shown(customer_page(job), do="correct", address="x")


def test_customer_reads_in_spanish_that_the_address_is_not_found(desk: Desk) -> None:
    page = shown(customer_page(desk.assigned()), do="correct", address="Calle Ninguna")
    assert is_spanish(page)
    assert "No encontramos esta dirección. Agregue la ciudad y el código postal." in page


def test_refusal_names_the_number_to_call_in_spanish(desk: Desk) -> None:
    job = desk.assigned()
    services.mark_started(job.pk, actor=MARIA)
    page = shown(customer_page(job), do="cancel")
    assert is_spanish(page)
    assert "El técnico ya empezó. Para cancelar su solicitud, llame a" in page


def test_technician_page_is_in_the_language_of_the_technician(desk: Desk) -> None:
    desk.assigned()
    page = shown(signed_links.technician_url(desk.ann))
    assert is_spanish(page)
    assert "Trabajos de hoy" in page
    page = shown(signed_links.technician_url(desk.ann), do="position", place="")
    assert is_spanish(page)
    assert "Escriba una dirección o un código postal." in page
    assert "Salir de servicio" in shown(signed_links.technician_url(desk.ann), do="duty", on="1")
    Technician.objects.filter(pk=desk.ann.pk).update(language="en")
    page = shown(signed_links.technician_url(desk.ann))
    assert '<html lang="en">' in page
    assert "Today&#x27;s jobs" in page or "Today's jobs" in page


def test_technician_reads_no_english_conflict(desk: Desk) -> None:
    job = desk.assigned()
    page = shown(signed_links.technician_url(desk.ann), do="go", job=str(job.pk), eta="9999")
    assert is_spanish(page)
    assert "Revise lo que escribió." in page


def test_offer_page_and_its_sketch_are_spanish(desk: Desk) -> None:
    Technician.objects.update(lat=33.5)
    offer = desk.offered(priority=1)
    page = shown(signed_links.offer_url(offer))
    assert is_spanish(page)
    assert "Aceptar el trabajo" in page
    assert "distancia en línea recta" in page
    sketch = page[page.index('<svg class="sketch"') : page.index("</figure>")]
    numbers = re.findall(r'\b(?:c?[xy]|[xy][12]|r)="([^"]*)"', sketch)
    assert numbers
    assert all(re.fullmatch(r"-?\d+(\.\d+)?", number) for number in numbers), "numbers of SVG have no comma"
    page = shown(signed_links.offer_url(offer), answer="decline")
    assert is_spanish(page)
    assert "Rechazó el trabajo" in page


def test_english_organization_and_invalid_links_have_english_pages(desk: Desk) -> None:
    job = desk.job()
    Organization.objects.update(language="en")
    page = shown(customer_page(job))
    assert '<html lang="en">' in page
    assert "We are calling technicians" in page
    gone = Client().get("/s/nonsense/").content.decode()
    assert '<html lang="en">' in gone
    assert languages.is_english()
