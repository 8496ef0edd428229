"""Pages of leads, the outbox, schedules, reports, accounts and the portal in Spanish, without an English rest."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from django.template.loader import render_to_string
from django.test import Client
from django.urls import reverse
from django.utils import translation

from accounts.models import User
from dispatch.core import languages
from dispatch.leads.models import Campaign, Lead
from dispatch.outbox.models import Endpoint, Message, MessageGroup, PortalLink
from dispatch.schedules.models import Run, Schedule
from tests.support.tenants import Tenant
from tests.translations import NUL, read_catalog
from tests.unmarked_texts import ATTRIBUTES

pytestmark = pytest.mark.django_db

Browser = Callable[..., Client]
CATALOG = read_catalog(Path("dispatch/locale/es/LC_MESSAGES/django.po"))
# Sentences that Spanish writes otherwise. Those with places for values are found by the words below.
ENGLISH = {
    form
    for message, translated in CATALOG.items()
    for form in message.split(NUL)
    if form not in translated.split(NUL) and not re.search(r"[{%]", form)
} - {"Mar", "phone"}  # also Tuesday in Spanish, and the name of a column
SENTENCES = [text for text in ENGLISH if len(text.split()) >= 3]
# Words that no Spanish text has.
WORDS = re.compile(
    r"\b(?:the|and|of|is|are|was|were|for|with|from|your|you|this|that|not|have|has|been|will|by|to|or|at|until|"
    r"since|ago|called|message|messages|lead|leads|schedule|run|runs|failed|waiting|sent)\b",
    re.IGNORECASE,
)
HIDDEN = frozenset({"script", "style", "code", "pre", "kbd", "svg", "textarea"})


class Reader(HTMLParser):
    """Collect the texts of a page's main part that people see or hear."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [value for name, value in attrs if name in ATTRIBUTES and value]
        if tag in HIDDEN or any(name == "data-english" for name, _ in attrs):
            self.hidden.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.hidden and self.hidden[-1] == tag:
            self.hidden.pop()

    def handle_data(self, data: str) -> None:
        if not self.hidden and data.strip():
            self.texts.append(" ".join(data.split()))


def texts_of(page: str) -> list[str]:
    reader = Reader()
    title = page[page.find("<title>") : page.find("</title>")]
    reader.feed(title + page[page.find("<main") :] if "<main" in page else page)
    return reader.texts


def english_in(page: str, data: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield the texts of a page that are or contain English. `data`: names in the rows."""
    for text in texts_of(page):
        shown = text
        for name in data:
            shown = shown.replace(name, "")
        if text in ENGLISH or any(sentence in text for sentence in SENTENCES) or WORDS.search(shown):
            yield text


def spanish(person: User) -> User:
    User.objects.filter(pk=person.pk).update(language=languages.SPANISH)
    person.refresh_from_db()
    return person


def paths_of(ours: Tenant) -> list[str]:
    campaign, lead = ours.row(Campaign), ours.row(Lead)
    endpoint, message, group = ours.row(Endpoint), ours.row(Message), ours.row(MessageGroup)
    schedule, run = ours.row(Schedule), ours.row(Run)
    return [
        "/leads/",
        "/leads/phone/",
        "/leads/phone/?q=12",
        f"/leads/phone/?q=%2B{str(lead.phone).lstrip('+')}",
        "/leads/upload/",
        "/leads/live/",
        reverse("console:campaign", args=[campaign.pk]),
        reverse("console:campaign", args=[campaign.pk]) + "?disposition=nothing",
        "/outbox/?state=all",
        "/outbox/?state=blocked&endpoint=0",
        "/outbox/?state=busy&endpoint=0",
        "/outbox/?q=nothing",
        reverse("console:outbox_group", args=[group.pk]),
        "/outbox/messages/",
        "/outbox/messages/?type=nothing",
        reverse("console:outbox_message", args=[message.pk]),
        "/outbox/endpoints/",
        reverse("console:outbox_endpoint", args=[endpoint.pk]),
        reverse("console:outbox_condition", args=[endpoint.pk]),
        reverse("console:outbox_missed", args=[endpoint.pk]) + "?since=2026-01-01T00:00",
        "/outbox/catalog/?q=nothing",
        "/schedules/",
        "/schedules/?view=all",
        "/schedules/?view=calendar",
        "/schedules/?view=runs",
        "/schedules/?view=runs&status=succeeded",
        "/schedules/?name=nothing",
        *(f"/schedules/new/?kind={kind}" for kind in ("submission", "lead", "message", "http")),
        reverse("console:schedule", args=[schedule.pk]),
        reverse("console:act_on_schedule", args=[schedule.pk, "delete"]),
        reverse("console:edit_schedule", args=[schedule.pk]),
        reverse("console:run_with_changes", args=[schedule.pk]),
        reverse("console:schedule_run", args=[run.pk]),
        "/reports/?days=366",
        *(f"/reports/{slug}/?days=366" for slug in ("technicians", "campaigns", "numbers", "customers", "hours")),
        "/reports/?from=2020-01-01&to=2020-01-02",
        "/account/second-factor/",
        "/account/second-factor/totp/activate/",
        "/account/second-factor/webauthn/add/",
        "/account/sessions/",
    ]


# What rows contain, and names of the machinery, which are the same in every language.
DATA = (
    "Alphaville key", "job.assigned", "webhook-id", "message.created", "endpoint.", "message.", "to_phone",
    "external_id", "consent_at", "contact_from", "contact_until", "due_at", "Messages: ",
    # the catalog describes event types in English, as the API does
    "An acknowledged alert about a job returned because nothing was done.",
)  # fmt: skip


def test_every_page_is_in_spanish_without_an_english_rest(ours: Tenant, browser: Browser):
    client = browser(spanish(ours.admin))
    found = {}
    for path in paths_of(ours):
        answer = client.get(path)
        assert answer.status_code == 200, (path, answer.status_code)
        page = answer.content.decode()
        assert '<html lang="es"' in page, path
        if rest := list(english_in(page, DATA)):
            found[path] = rest
    assert found == {}


def test_errors_of_forms_are_in_spanish(ours: Tenant, browser: Browser):
    client = browser(spanish(ours.admin))
    given = {"kind": "http", "name": "X", "how": "cron", "cron": "0 9 * *", "time_zone": "America/Phoenix"}
    page = client.post(reverse("console:new_schedule"), {**given, "p-body": "{"})
    assert page.status_code == 422
    page = client.post(reverse("console:new_schedule"), {**given, "p-url": "https://example.com"})
    assert page.status_code == 422
    shown = " ".join(texts_of(page.content.decode()))
    assert "No se guardó." in shown
    assert "Debe tener cinco campos: minuto, hora, día, mes, día de la semana." in shown
    page = client.post(
        reverse("console:new_schedule"),
        {**given, "p-url": "https://example.com", "cron": "", "how": "rrule", "rrule": "FREQ=NO"},
    )
    assert "FREQ debe ser una de DAILY" in " ".join(texts_of(page.content.decode()))
    page = client.post(reverse("console:leads_upload"), {"campaign": ours.row(Campaign).code})
    assert (page.status_code, "Elija un archivo. No se agregó nada." in page.content.decode()) == (422, True)
    page = client.post(reverse("console:outbox_condition", args=[ours.row(Endpoint).pk]), {"condition": "a ["})
    assert "No es una expresión JMESPath" in page.content.decode()


def test_answers_to_actions_are_in_spanish(ours: Tenant, browser: Browser):
    client = browser(spanish(ours.admin))
    message, endpoint, schedule = ours.row(Message), ours.row(Endpoint), ours.row(Schedule)
    Message.objects.filter(pk=message.pk).update(status="COMPLETED", in_flight=False)
    Schedule.objects.filter(pk=schedule.pk).update(status="active")
    answers = [
        client.post(reverse("console:leads_switch"), {"mode": "dry_run"}, follow=True),
        client.post(reverse("console:leads_campaign", args=[ours.row(Campaign).pk, "pause"]), follow=True),
        client.post(
            reverse("console:outbox_act_on_endpoint", args=[endpoint.pk]), {"action": "pause"}, follow=True
        ),
        client.post(reverse("console:outbox_act"), {"action": "retry", "ids": [message.pk]}),
        client.post(reverse("console:outbox_act"), {"action": "replay", "ids": [message.pk]}),
        client.post(
            reverse("console:outbox_act"), {"action": "retry", "ids": [message.pk], "sure": "1"}, follow=True
        ),
        client.post(
            reverse("console:outbox_act"), {"action": "replay", "ids": [message.pk], "sure": "1"}, follow=True
        ),
        client.post(reverse("console:act_on_schedule", args=[schedule.pk, "pause"]), follow=True),
        client.post(reverse("console:act_on_schedule", args=[schedule.pk, "pause"]), follow=True),
    ]
    for answer in answers:
        assert answer.status_code == 200
        assert list(english_in(answer.content.decode(), DATA)) == []
    shown = [" ".join(texts_of(answer.content.decode())) for answer in answers]
    assert "Llamadas a prospectos: simulación." in shown[0]
    assert "está en pausa." in shown[1]
    assert "Endpoint en pausa. Sus mensajes se conservan." in shown[2]
    assert "Solo se pueden reintentar mensajes con error" in shown[3]
    assert "¿Reenviar mensajes?" in shown[4]
    assert "1 mensaje sin reintentar: solo se pueden reintentar mensajes con error" in shown[5]
    assert "1 mensaje reenviado." in shown[6]
    assert "Programación en pausa." in shown[7]


def test_portal_is_in_the_browser_s_language(ours: Tenant, client: Client):
    link, message = ours.row(PortalLink), ours.row(Message)
    assert (
        "Este enlace no es válido"
        in client.get("/portal/none/", headers={"Accept-Language": "es"}).content.decode()
    )
    assert "This link is not valid" in client.get("/portal/none/").content.decode()
    with translation.override(languages.SPANISH):
        context = {"link": link, "organization": ours.organization, "zone": "UTC", "endpoint": ours.row(Endpoint)}
        state = {
            "state": ("good", "Healthy"),
            "rows": [(message, ("good", "Completed"))],
            "overlaps": (0, 1, 24, 168),
        }
        for name in ("home", "endpoint", "message", "open", "secret", "catalog", "closed"):
            more = {**state, "rows": []} if name == "home" else state
            page = render_to_string(
                f"portal/{name}.html", {**context, **more, "message": message, "language": "es"}
            )
            assert list(english_in(page, DATA)) == [], name


@pytest.mark.parametrize("name", ["400", "403", "403_csrf", "404", "409", "429", "500", "503", "locked_out"])
def test_error_pages_are_in_spanish(name: str):
    with translation.override(languages.SPANISH):
        assert list(english_in(render_to_string(f"{name}.html", {"failure_limit": 5, "username": "Ana"}))) == []


@pytest.mark.parametrize(
    ("path", "status"),
    [("/account/login/", 200), ("/account/sso/", 200), ("/join/none/none/", 404), ("/none/", 404)],
)
def test_pages_without_a_session_follow_the_browser(client: Client, path: str, status: int):
    answer = client.get(path, headers={"Accept-Language": "es-MX"}, follow=True)
    assert answer.status_code in (status, 200, 410)
    assert list(english_in(answer.content.decode())) == []


def test_cached_figures_of_a_campaign_belong_to_a_language(ours: Tenant, browser: Browser, monkeypatch: Any):
    from dispatch.console.leads import campaign_queries

    monkeypatch.setattr(campaign_queries, "SLOW_S", 0.0)  # everything is cached
    path = reverse("console:campaign", args=[ours.row(Campaign).pk])
    in_spanish = browser(spanish(ours.admin)).get(path).content.decode()
    in_english = browser(ours.dispatcher).get(path).content.decode()
    assert ("0 contestadas" in in_spanish, "0 answered" in in_english) == (True, True)
    campaign_queries._cached_days.clear()


def test_english_stays_as_it_was(ours: Tenant, browser: Browser):
    client = browser(ours.admin)
    for path in paths_of(ours):
        page = client.get(path).content.decode()
        assert '<html lang="en"' in page
        spanish_texts = {text for text in texts_of(page) if text in TRANSLATIONS}
        assert spanish_texts == set(), path


TRANSLATIONS = {
    form
    for message, translated in CATALOG.items()
    for form in translated.split(NUL)
    if form not in ENGLISH and form not in message.split(NUL) and form not in CATALOG
}
