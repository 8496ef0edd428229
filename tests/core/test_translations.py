"""Every marked sentence has a Spanish translation with the same places, and the compiled catalog is current."""

from __future__ import annotations

import calendar
import gettext
import re
import threading
from string import Formatter

from accounts.models import User
from dispatch.core import languages, script_texts
from dispatch.core.labels import translate_label
from dispatch.telephony.models import Call
from tests.translations import (
    CATALOGS,
    NUL,
    SCRIPT_CATALOGS,
    compare,
    compile_catalog,
    marked_messages,
    marked_script_messages,
    read_catalog,
    shown_labels,
)

SPANISH = {path.parts[-3]: path for path in CATALOGS}[languages.SPANISH]
SPANISH_SCRIPTS = {path.parts[-3]: path for path in SCRIPT_CATALOGS}[languages.SPANISH]
MESSAGES = read_catalog(SPANISH)
SCRIPT_MESSAGES = read_catalog(SPANISH_SCRIPTS)
MARKED = [(MESSAGES, *marked) for marked in sorted(marked_messages().items())]
MARKED += [(SCRIPT_MESSAGES, *marked) for marked in sorted(marked_script_messages().items())]
ACRONYMS = {"API requests per minute"}  # the acronym is not the first word in Spanish
# Spanish writes the names of days and months in lower case, and its dates begin with the day.
CALENDAR = {
    *calendar.day_name,
    *calendar.month_name,
    *calendar.month_abbr,
    "M j, Y",
    "M j, Y, H:i T",
}


def places(text: str) -> set[str]:
    """The names of the values in a sentence: of a template, or of the code."""
    in_templates = set(re.findall(r"%\((\w+)\)s", text))
    return in_templates | {name for _, name, _, _ in Formatter().parse(text) if name is not None}


def test_each_language_but_english_has_a_catalog():
    offered = {code for code, _ in languages.CHOICES} - {languages.DEFAULT}
    assert {path.parts[-3] for path in CATALOGS} == offered


def test_marked_sentences_are_translated_with_the_same_places():
    problems = (
        (where, message, problem_of(messages.get(message, ""), message)) for messages, message, where in MARKED
    )
    assert [found for found in problems if found[2]] == []


def problem_of(translation: str, message: str) -> str:
    """Return what is wrong with the translation of this message, or ""."""
    singular, *plural = message.split(NUL)
    forms = translation.split(NUL)
    if not all(form.strip() for form in forms):
        return "no Spanish translation"
    if len(forms) != (2 if plural else 1):
        return "another number of forms"
    is_upper = singular[:1].isupper() and message not in CALENDAR | ACRONYMS
    has_no_case = singular[:1].isdigit() or singular.startswith("{")
    for form in forms:
        if places(form) != places(singular):
            return f"other places: {form}"
        if not has_no_case and form[:1].isupper() != is_upper and form[:1] not in "¿{":
            return f"another case: {form}"
    return ""


def test_catalogs_have_each_sentence_and_label_and_no_other():
    assert compare(set(MESSAGES) - {""}, set(marked_messages()), shown_labels()) == (set(), set())
    assert compare(set(SCRIPT_MESSAGES) - {""}, set(marked_script_messages())) == (set(), set())


def test_label_has_the_translation_of_its_model_or_the_general_one():
    with languages.override(languages.SPANISH):
        assert [translate_label("Failed", model) for model in ("telephony.call", "outbox.message")] == [
            "Fallida",
            "Fallido",
        ]
        assert str(Call._meta.get_field("to_phone").verbose_name) == "teléfono de destino"
        assert Call(status="failed").get_status_display() == "Fallida"
        assert str(User._meta.get_field("is_active").verbose_name) == "activo"
    assert str(Call._meta.get_field("to_phone").verbose_name) == "to phone"
    assert Call(status="failed").get_status_display() == "Failed"


def test_catalog_of_the_scripts_is_that_of_the_source():
    assert SPANISH_SCRIPTS.with_suffix(".mo").read_bytes() == compile_catalog(SCRIPT_MESSAGES)
    catalog = script_texts.load_catalog(languages.SPANISH)
    for message, translation in SCRIPT_MESSAGES.items():
        if message:
            assert catalog[message] == (translation.split(NUL) if NUL in message else translation)
    assert script_texts.load_catalog(languages.DEFAULT) == {}


def test_compiled_catalog_is_that_of_the_source():
    compiled = SPANISH.with_suffix(".mo").read_bytes()
    assert compiled == compile_catalog(MESSAGES), "run `python -m tests.translations` and commit the result"
    with SPANISH.with_suffix(".mo").open("rb") as file:
        catalog = gettext.GNUTranslations(file)
    for message, translation in MESSAGES.items():
        if message and NUL not in message:
            assert catalog.gettext(message) == translation
    one, many = "You have {count} open job.", "You have {count} open jobs."
    assert [catalog.ngettext(one, many, count) for count in (0, 1, 2)] == [
        "Tiene {count} trabajos abiertos.",
        "Tiene {count} trabajo abierto.",
        "Tiene {count} trabajos abiertos.",
    ]


def test_language_of_one_thread_does_not_reach_another():
    inside, done = threading.Event(), threading.Event()

    def speak_spanish() -> None:
        with languages.override(languages.SPANISH):
            inside.set()
            done.wait(30)

    other = threading.Thread(target=speak_spanish)
    other.start()
    try:
        assert inside.wait(30)
        assert languages.gettext("Goodbye.") == "Goodbye."
    finally:
        done.set()
        other.join()
    with languages.override(languages.SPANISH):
        assert languages.gettext("Goodbye.") == "Adiós."
    assert languages.gettext("Goodbye.") == "Goodbye."
