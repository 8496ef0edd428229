"""Refusals, reasons and live texts of the board and the settings in Spanish, also what is stored in English."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from accounts.models import User
from dispatch.core import clock, events, languages
from dispatch.core.models import Event
from dispatch.jobs import action_forms, geocoding, services
from dispatch.jobs.models import Candidate, Job, Offer, TechnicianNotice
from dispatch.jobs.rules import Action
from dispatch.jobs.services import notices
from notifications.models import Notification
from notifications.services import handle, ownership
from tests.console.test_board import BOB, HTMX, Desk
from tests.console.test_spanish_pages import english_in, spanish
from tests.support import factories as make

pytestmark = pytest.mark.django_db
# What people entered, and words that both languages write in the same way.
DATA = ("Water heater", "Whitfield", make.PHOENIX.address, "Bob", "Dana", "the pipe is hot")


@pytest.fixture
def desk(browser: Any) -> Desk:
    made = Desk(browser)
    spanish(made.person)
    return made


def shown(answer: Any) -> str:
    return answer.content.decode().replace("&#x27;", "'") + answer.headers.get("HX-Trigger", "")


def act(desk: Desk, job: Job, action: str, **fields: Any) -> str:
    path = f"/board/jobs/{job.pk}/act/{action}/"
    return shown(desk.client.post(path, {"version": job.version, **fields}, headers=HTMX))


def test_refused_actions_say_why_in_spanish(desk: Desk) -> None:
    job, done = desk.job("pending"), desk.job("completed")
    ann = desk.technician("Ann", on_duty=False)
    services.correct(job.pk, correction=services.Correction(), priority=1, actor=BOB)
    page = act(desk, job, "cancel", reason="x")
    last = r"A las [\d:]+ MST del [\d-]+, Bob corrigió el trabajo: prioridad\."
    assert re.search(rf"Este trabajo cambió\. {last}", page)
    job.refresh_from_db()
    assert list(english_in(act(desk, job, "cancel", reason=" "), DATA)) == []
    assert "Estado del trabajo: terminado; no se puede asignar." in act(desk, done, "assign", technician=ann.pk)
    page = act(desk, job, "assign", technician=ann.pk)
    assert "Ann: fuera de servicio." in page or "Ann no está de servicio." in page
    paused = desk.job(paused_at=clock.now(), next_action_at=None, waiting_for="person")
    page = act(desk, paused, "pause")
    assert "Este trabajo está en pausa, así que no se puede poner en pausa. Reanúdelo primero." in page
    assert "no hay nada que prolongar" in act(desk, desk.job(), "extend", seconds=60)


def test_refusals_of_the_api_stay_in_english_for_programs(desk: Desk) -> None:
    done = desk.job("completed")
    key = make.api_key(desk.organization, "jobs:write")
    headers = {"Authorization": f"Bearer {key}", "Accept-Language": "es"}
    answer = desk.client.post(f"/api/v1/jobs/{done.pk}/pause/", {}, "application/json", headers=headers)
    assert answer.status_code == 409
    assert "This job is completed, so it can't be paused." in answer.json()["detail"]


def test_reasons_are_stored_in_english_and_shown_in_spanish(desk: Desk) -> None:
    ann = desk.technician("Ann")
    job = desk.job("assigned", technician=ann)
    with languages.override("es"):
        services.cancel(job.pk, "busy", actor=BOB)
    Offer.objects.create(
        organization=desk.organization, job=job, technician=ann, attempt=1, status="timed_out",
        expires_at=clock.now(), reason="no answer in time", outcome="timed_out",
    )  # fmt: skip
    eve = desk.technician("Eve")
    Candidate.objects.create(
        organization=desk.organization, job=job, technician=eve, rank=1, verdict="out", distance_m=1, score=1,
        reason="qualified, within the 20 mi of round 2, preferred skill: gas",
    )  # fmt: skip
    data = {"technician": "Ann", "reason": "the call failed (error 31005)"}
    events.append(desk.organization.pk, "offer.missed", Offer.objects.get().pk, **data)
    events.append(desk.organization.pk, "job.waiting", job.pk, waiting_for="line")
    events.append(desk.organization.pk, "job.alert_escalated", job.pk, told="Ana by text and call, Bo by email")
    events.append(desk.organization.pk, "job.alert_settled", job.pk, how="Bob assigned the job to Ann")
    events.append(
        desk.organization.pk, "job.technician_told", job.pk, technician="Ann", news_text=notices.News.CHANGED.label
    )
    page = desk.see(f"/board/jobs/{job.pk}/", headers=HTMX)
    for words in (
        "no respondió a tiempo",
        "calificado, dentro de los 20 mi de la ronda 2, habilidad preferida: gas",
        "la llamada falló (error 31005)",
        "está en espera: falta una línea libre",
        "Ana por mensaje de texto y llamada, Bo por correo",
        "Bob asignó el trabajo a Ann",
        "el trabajo cambió",
        "canceló el trabajo: busy",
    ):
        assert words in page, words
    assert list(english_in(page, (*DATA, "Ann", "Eve", ": busy"))) == []
    assert Event.objects.filter(kind="offer.missed", data__reason=data["reason"]).exists()


def test_consequences_and_deferred_notices_are_in_spanish(desk: Desk) -> None:
    ann = desk.technician("Ann")
    job = desk.job("assigned", technician=ann)
    notice = TechnicianNotice.objects.create(
        organization=desk.organization, job=job, technician=ann, news="changed", status="unreached",
        reason="no answer", alert_at=clock.now(),
    )  # fmt: skip
    with languages.override("es"):
        words = action_forms.describe_consequence(Action.TECHNICIAN_TOLD, job)
        assert words == "Registra que Ann sabe que el trabajo cambió. Termina la alerta."
        TechnicianNotice.objects.filter(pk=notice.pk).update(
            status="sending", deferred_until=clock.now() + timedelta(hours=8), next_action_at=clock.now()
        )
        for sentence in notices.describe_deferred(job):
            assert sentence.startswith("Ann recibirá el aviso a las ")
            assert sentence.endswith("el trabajo cambió.")


def test_unknown_address_is_explained_in_spanish(desk: Desk) -> None:
    facts = {"address": "Main Street", "service_type": desk.service.pk, "customer_phone": ""}
    place, why = geocoding.geocode_with_reason(
        lat=None, lng=None, address="Main Street", organization=desk.organization
    )
    assert (place, why) == (None, geocoding.NO_ZIP_CODE)
    page = shown(desk.client.post("/board/new/facts/", facts, headers=HTMX))
    assert "La dirección no tiene código postal." in page


def test_notifications_say_who_and_what_in_spanish(desk: Desk) -> None:
    job = desk.job("assigned")
    with transaction.atomic():
        handle(
            [events.append(desk.organization.pk, "job.cannot_make_it", job.pk, technician="Ann", note="llanta")]
        )
    page = desk.see("/notifications/")
    assert f"Trabajo {job.pk}: Ann no puede ir" in page
    assert "llanta" in page
    shown_by_api = desk.client.get("/api/v1/notifications/").json()["results"][0]
    assert shown_by_api["title"] == f"Trabajo {job.pk}: Ann no puede ir"
    assert Notification.objects.get().title == f"Job {job.pk}: Ann can't make it"


def test_claim_of_another_is_named_in_spanish(desk: Desk) -> None:
    job = desk.job("pending")
    other = make.dispatcher(desk.organization, "Bob")
    ownership.claim(desk.organization, ownership.JOB, job.pk, user=other, actor=BOB)
    answer = desk.client.post("/board/selected/", {"do": "claim", "job": [job.pk]}, headers=HTMX)
    assert "Bob lo tom" in shown(answer)


def test_channel_forms_and_push_refusals_are_in_spanish(desk: Desk) -> None:
    for kind in ("slack", "teams", "google_chat", "telegram", "matrix", "ntfy", "webhook"):
        page = desk.see(f"/notifications/channels/new/{kind}/")
        assert list(english_in(page, ("Incoming Webhooks", "/messages"))) == [], kind
        answer = desk.client.post(
            f"/notifications/channels/new/{kind}/", {"name": "x", "url": "x", "token": "x y"}
        )
        assert answer.status_code == 422
        assert list(english_in(shown(answer), ("Incoming Webhooks", "/messages"))) == [], kind
    push = desk.client.post("/notifications/push/", '{"do": "on"}', content_type="application/json")
    assert push.json()["problem"] == "Esto no es una suscripción de un navegador."
    push = desk.client.post("/notifications/push/", '{"do": "test"}', content_type="application/json")
    assert push.json()["problem"] == "Este navegador fue quitado."


def test_privacy_pages_are_in_spanish(desk: Desk, browser: Any) -> None:
    client = browser(spanish(User.objects.get(pk=make.admin(desk.organization, "Alma").pk)))
    for path, data, words in (
        ("/admin/personal-data/", {"what": "erase"}, "Escriba solo uno: teléfono, correo, técnico o miembro."),
        ("/admin/personal-data/", {"email": "a@b.co"}, "Escriba erase para confirmar."),
        ("/admin/personal-data/", {"phone": "12"}, "no es un número de teléfono válido"),
        (
            "/admin/audit-log/",
            {"since": "2026-02-01", "until": "2026-01-01"},
            "No debe ser anterior al primer día.",
        ),
    ):
        page = shown(client.post(path, data))
        assert words in page
        form = page[page.find("<form method") :]
        assert list(english_in(form[: form.find("</form>")])) == []
