"""Compile the translations, and list the marked sentences that have none: `python -m tests.translations`.

The catalogs are `dispatch/locale/<language>/LC_MESSAGES/django.po`, and `djangojs.po` for the texts of browser
scripts. Django reads only the compiled `.mo` beside them, which is committed, so that a checkout works without the
gettext tools. A test fails if the two differ.
"""

from __future__ import annotations

import ast
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import django
import unfold
from django.apps import apps
from django.utils.translation.template import templatize

from tests.support import admin_fields

CATALOGS = sorted(Path("dispatch/locale").glob("*/LC_MESSAGES/django.po"))
SCRIPT_CATALOGS = sorted(Path("dispatch/locale").glob("*/LC_MESSAGES/djangojs.po"))
EVENT_TYPES = Path("dispatch/outbox/event_types.json")
SOURCES = ("accounts", "dispatch", "notifications")
TEMPLATES = sorted([*Path("templates").rglob("*.html"), *Path("templates").rglob("*.txt")])
SCRIPTS = sorted(set(Path("static/dispatch").glob("*.js")) - {Path("static/dispatch/texts.js")})
# The apps with pages in the admin.
SLICES = frozenset(
    {"accounts", "notifications"}
    | {
        f"dispatch.{name}"
        for name in ("capacity", "jobs", "leads", "outbox", "schedules", "technicians", "telephony")
    }
)
_STRING = r"""u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
# What Django's `templatize` makes of the marks of a template.
_TEMPLATE_MARK = re.compile(rf"(?:\bn?gettext|\b_)\(({_STRING})(?:, ({_STRING}), count)?\)")
_SCRIPT_MARK = re.compile(rf"\bT\.(?:get|plural)\(\s*({_STRING})(?:,\s*({_STRING}))?")
# The names under which modules import the functions of `core.languages`.
MARKS = frozenset({"_", "gettext", "mark", "mark_stored", "gettext_lazy"})
PLURALS = frozenset({"ngettext"})
# The names under which modules import the functions of `core.labels`.
LABELS = frozenset({"label", "translate_label"})
# Between the singular and the plural in a .mo, and between the context and the message.
NUL, CONTEXT = "\0", "\x04"
# The keys of a label in a catalog, in the order in which they are looked up.
Keys = tuple[str, ...]
# Parts of the admin's theme that Dispatch does not use.
UNUSED_THEME = re.compile(
    r"/(?:unfold_crispy|components\.py|auth/user|account_links|forms/.*wysiwyg|forms/.*array)|"
    r"/contrib/(?!filters|forms|inlines)"
)


def main() -> int:
    """Write each .mo and print what is missing or unused; return the exit code."""
    problems = []
    for path in [*CATALOGS, *SCRIPT_CATALOGS]:
        messages = read_catalog(path)
        path.with_suffix(".mo").write_bytes(compile_catalog(messages))
        marks = (
            (set(marked_script_messages()),)
            if path in SCRIPT_CATALOGS
            else (set(marked_messages()), shown_labels())
        )
        missing, unused = compare(set(messages) - {""}, *marks)
        problems += [f"{path}: no translation of {message!r}" for message in sorted(missing)]
        problems += [f"{path}: unused: {message!r}" for message in sorted(unused)]
    print("\n".join(problems) or "All sentences are translated.")  # noqa: T201
    return 1 if problems else 0


def compare(known: set[str], marked: set[str], labels: set[Keys] | None = None) -> tuple[set[str], set[str]]:
    """Return the messages that a catalog lacks, and those that nothing uses. `labels`: those that it needs."""
    missing = marked - known
    missing |= {keys[-1] for keys in labels or () if not known.intersection(keys)}
    used = marked | {key for keys in labels | all_labels() for key in keys} if labels else marked
    return missing, known - used


def marked_messages() -> dict[str, str]:
    """Return the marked messages of the sources with the place of each. Plurals are joined by a NUL."""
    found: dict[str, str] = {}
    for path, calls in _calls_of_sources():
        for call in calls:
            name = call.func.id if isinstance(call.func, ast.Name) else ""
            texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
            if name in MARKS and texts:
                found.setdefault(str(texts[0]), f"{path}:{call.lineno}")
            elif name in PLURALS and texts:
                found.setdefault(NUL.join(map(str, texts[:2])), f"{path}:{call.lineno}")
    for form in forms_of_notifications():
        found.setdefault(form, "notifications/rules.py")
    for message in descriptions_of_event_types():
        found.setdefault(message, str(EVENT_TYPES))
    for path in TEMPLATES:
        for message in template_messages(path.read_text()):
            found.setdefault(message, str(path))
    for message in messages_of_theme():
        found.setdefault(message, "unfold")
    return found


def shown_labels() -> set[Keys]:
    """Return the labels that the admin shows, each as the keys under which a catalog may hold it."""
    _set_up()
    found = {_keys_of(text, "") for text in _labels_of_code()}
    kinds = json.loads(EVENT_TYPES.read_text())
    found |= {_keys_of(kind.partition(".")[2].replace("_", " "), "event") for kind in kinds}
    found |= {_keys_of(str(config.verbose_name), "") for config in apps.get_app_configs() if config.name in SLICES}
    fields = admin_fields.shown_fields()
    for model in apps.get_models():  # before a row is deleted, the admin lists rows of any model
        is_ours = model.__module__.partition(".")[0] in SOURCES and model._meta.app_label != "core"
        names = fields.get(model, set()) | {field.name for field in model._meta.fields if field.choices}
        found |= {
            _keys_of(text, model._meta.label_lower) for text in admin_fields.labels_of(model, names) if is_ours
        }
    return found


def all_labels() -> set[Keys]:
    """Return the labels of all our models, shown or not."""
    models = [model for model in apps.get_models() if model.__module__.partition(".")[0] in SOURCES]
    return {
        _keys_of(text, model._meta.label_lower)
        for model in models
        for text in admin_fields.labels_of(model, {field.name for field in model._meta.fields})
    }


def _labels_of_code() -> Iterator[str]:
    for _, calls in _calls_of_sources():
        for call in calls:
            if (text := _text_of(call, LABELS)) is not None:
                yield text


def _keys_of(text: str, model: str) -> Keys:
    """Return the keys under which a catalog may hold a label, in order. The last one has no context."""
    return *(f"{context}{CONTEXT}{text}" for context in (model, "label") if context), text


def messages_of_theme() -> Iterator[str]:
    """Yield the texts of the admin's theme, which has no translations, that Django's catalogs lack."""
    theme, framework = Path(unfold.__file__).parent, Path(django.__file__).parent
    known: set[str] = set()
    for place in ("contrib/admin", "contrib/auth", "conf"):
        known |= set(read_catalog(framework / place / "locale/es/LC_MESSAGES/django.po"))
    for path in sorted([*theme.rglob("*.py"), *theme.rglob("*.html")]):
        if UNUSED_THEME.search(str(path)):
            continue
        text = path.read_text()
        if path.suffix == ".html":
            yield from (message for message in template_messages(text) if message and message not in known)
            continue
        texts = (_text_of(call, MARKS) for call in _calls(ast.parse(text)))
        yield from (message for message in texts if message and message not in known)


def _text_of(call: ast.Call, names: frozenset[str]) -> str | None:
    """Return the literal that a call of one of these functions marks, or None."""
    is_mark = isinstance(call.func, ast.Name) and call.func.id in names and call.args
    text = call.args[0].value if is_mark and isinstance(call.args[0], ast.Constant) else None
    return text if isinstance(text, str) else None


def _set_up() -> None:
    if not apps.ready:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        django.setup()


def forms_of_notifications() -> list[str]:
    """Return the forms of titles, details and outcomes of notifications, which their table marks as a whole."""
    _set_up()
    from notifications.translation import forms_of_rules

    return list(forms_of_rules())


def descriptions_of_event_types() -> list[str]:
    """Return the descriptions of Dispatch's own types of events, which their file marks as a whole."""
    return [given["description"] for given in json.loads(EVENT_TYPES.read_text()).values()]


def template_messages(source: str) -> list[str]:
    """Return the marked messages of a template, as Django looks them up. Plurals are joined by a NUL."""
    return [_message_of(match) for match in _TEMPLATE_MARK.finditer(templatize(source))]


def marked_script_messages() -> dict[str, str]:
    """Return the marked messages of the browser scripts with the place of each."""
    found: dict[str, str] = {}
    for path in SCRIPTS:
        for match in _SCRIPT_MARK.finditer(path.read_text()):
            found.setdefault(_message_of(match), str(path))
    return found


def _message_of(match: re.Match[str]) -> str:
    return NUL.join(ast.literal_eval(text.removeprefix("u")) for text in match.groups() if text)


@cache
def _calls_of_sources() -> list[tuple[Path, list[ast.Call]]]:
    paths = sorted(path for folder in SOURCES for path in Path(folder).rglob("*.py"))
    return [(path, list(_calls(ast.parse(path.read_text())))) for path in paths]


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def read_catalog(path: Path) -> dict[str, str]:
    """Return the translations of a .po. Plurals are joined by a NUL, on both sides."""
    messages: dict[str, str] = {}
    parts: dict[str, str] = {}
    field = ""
    for line in [*path.read_text().splitlines(), ""]:
        if not line.strip():
            if "msgid" in parts:
                _add(messages, parts)
            parts = {}
        elif line.startswith("#"):
            continue
        elif line.startswith('"'):
            parts[field] += ast.literal_eval(line)
        else:
            field, _, text = line.partition(" ")
            parts[field] = ast.literal_eval(text)
    return messages


def _add(messages: dict[str, str], parts: dict[str, str]) -> None:
    message = NUL.join(parts[name] for name in ("msgid", "msgid_plural") if name in parts)
    if "msgctxt" in parts:
        message = f"{parts['msgctxt']}{CONTEXT}{message}"
    if message in messages:
        raise ValueError(f"twice in the catalog: {message!r}")
    messages[message] = NUL.join(parts[name] for name in sorted(parts) if name.startswith("msgstr"))


def compile_catalog(messages: dict[str, str]) -> bytes:
    """Return the .mo (GNU gettext's format) of these translations. Untranslated ones are left out."""
    pairs = [(key.encode(), text.encode()) for key, text in sorted(messages.items()) if text.strip(NUL)]
    keys, texts = b"", b""
    key_table, text_table = [], []
    for key, text in pairs:
        key_table.append((len(key), len(keys)))
        text_table.append((len(text), len(texts)))
        keys += key + b"\0"
        texts += text + b"\0"
    header = 7 * 4
    keys_at = header + 16 * len(pairs)
    texts_at = keys_at + len(keys)
    tables = [(size, at + keys_at) for size, at in key_table] + [(size, at + texts_at) for size, at in text_table]
    numbers = [0x950412DE, 0, len(pairs), header, header + 8 * len(pairs), 0, keys_at]
    numbers += [number for entry in tables for number in entry]
    return struct.pack(f"<{len(numbers)}I", *numbers) + keys + texts


if __name__ == "__main__":
    sys.exit(main())
