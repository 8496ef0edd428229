"""Sentences that are stored in English are translated when they are shown, by registered forms."""

from __future__ import annotations

import time

import pytest

from dispatch.core import languages, stored_texts
from dispatch.core.stored_texts import read_values, translate_stored
from dispatch.jobs import reasons  # noqa: F401  (registers its forms)
from notifications import translation
from notifications.rules import BY_KIND, TABLE, message_of


@pytest.mark.parametrize(
    ("stored", "shown"),
    [
        ("no answer in time", "no respondió a tiempo"),
        ("the call failed (error 31005)", "la llamada falló (error 31005)"),
        ("manually assigned to Ann (Unit 2)", "asignado manualmente a Ann (Unit 2)"),
        ("push.example.com answered 410: the browser no longer takes notifications",
         "push.example.com respondió 410: el navegador ya no acepta notificaciones"),
        ("Maria assigned the job to Ann", "Maria asignó el trabajo a Ann"),
        ("Maria assigned the job", "Maria asignó el trabajo"),
        ("Phone provider reported that the phone provider is available again",
         "Proveedor telefónico reportó que el proveedor telefónico está disponible de nuevo"),
        ("The geocoder nominatim failed (Timeout).", "El geocodificador nominatim falló (Timeout)."),
        ("a note that somebody wrote", "a note that somebody wrote"),
        ("", ""),
    ],
)  # fmt: skip
def test_stored_sentence_is_shown_in_the_language(stored: str, shown: str) -> None:
    translation.register()
    assert translate_stored(stored) == stored
    with languages.override("es"):
        assert translate_stored(stored) == shown


def test_every_form_with_places_has_enough_words() -> None:
    translation.register()
    loose = [form.sentence for form in stored_texts._forms.values() if "{" in form.sentence and form.weight < 9]
    assert loose == [], "it would match sentences of people"


@pytest.mark.parametrize("text", ["a: b " * 199, "{name} " * 140, "\0" * 1000, "answered 1: " * 80])
def test_poisoned_text_is_left_alone_within_moments(text: str) -> None:
    with languages.override("es"):
        began = time.thread_time()  # not that of other threads and processes
        assert translate_stored(text) == text or "respondió" in translate_stored(text)
        assert time.thread_time() - began < 10


def test_a_text_longer_than_ours_is_not_compared_with_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def compare(text: str, depth: int) -> str:
        compared.append(text)
        return text

    monkeypatch.setattr(stored_texts, "_translate", compare)
    with languages.override("es"):
        for text in ("x" * stored_texts.MAX_LENGTH, "x" * 100_000):
            assert translate_stored(text) == text
        assert read_values("{name}", "x" * 100_000) is None
    assert [len(text) for text in compared] == [stored_texts.MAX_LENGTH]


def test_values_of_a_form_are_not_formatted_again() -> None:
    with languages.override("es"):
        assert translate_stored("paused by {0.__class__}") == "en pausa por {0.__class__}"
        assert translate_stored("manually assigned to {name}") == "asignado manualmente a {name}"


@pytest.mark.parametrize("rule", TABLE, ids=lambda rule: rule.kind)
def test_titles_of_each_kind_are_recognized(rule) -> None:
    facts = dict.fromkeys(
        ("technician", "customer", "name", "actor", "phone", "group", "word", "body", "of", "reason", "error"),
        "Q7",
    )
    facts |= dict.fromkeys(("id", "minutes", "count", "failures", "message_id", "percent", "misses"), "12")
    facts |= {"amount": "5", "currency": "USD", "others": "EUR", "now": "off", "did": "paused lead scheduling"}
    facts |= {"effect": "No calls can be made", "description": "The phone provider does not respond"}
    message = message_of(rule, {**facts, "count": 1})
    with languages.override("es"):
        title = translation.translate_title(rule.kind, message.title)
        assert title
        assert title != message.title
        details = translation.translate_details(rule.kind, message.body)
    read = [read_values(form, message.title) for form in translation.titles_of(rule)]
    assert any(values is not None for values in read)
    assert len(details.split("·")) == len(message.body.split("·"))


def test_missing_technician_has_a_word_in_the_language() -> None:
    rule = BY_KIND["job.cannot_make_it"]
    message = message_of(rule, {"id": 7, "note": "flat tire"})
    with languages.override("es"):
        assert translation.translate_title(rule.kind, message.title) == "Trabajo 7: el técnico no puede ir"
        assert translation.translate_details(rule.kind, message.body) == "flat tire"
        assert translation.translate_title(rule.kind, "Something else") == ""
