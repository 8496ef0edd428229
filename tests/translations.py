"""Compile the translations, and list the marked sentences that have none: `python -m tests.translations`.

The catalogs are `dispatch/locale/<language>/LC_MESSAGES/django.po`, and `djangojs.po` for the texts of browser
scripts. Django reads only the compiled `.mo` beside them, which is committed, so that a checkout works without the
gettext tools. A test fails if the two differ.
"""

from __future__ import annotations

import ast
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import django
from django.apps import apps
from django.utils.translation.template import templatize

CATALOGS = sorted(Path("dispatch/locale").glob("*/LC_MESSAGES/django.po"))
SCRIPT_CATALOGS = sorted(Path("dispatch/locale").glob("*/LC_MESSAGES/djangojs.po"))
SOURCES = ("accounts", "dispatch", "notifications")
TEMPLATES = sorted([*Path("templates").rglob("*.html"), *Path("templates").rglob("*.txt")])
SCRIPTS = sorted(set(Path("static/dispatch").glob("*.js")) - {Path("static/dispatch/texts.js")})
_STRING = r"""u?(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
# What Django's `templatize` makes of the marks of a template.
_TEMPLATE_MARK = re.compile(rf"(?:\bn?gettext|\b_)\(({_STRING})(?:, ({_STRING}), count)?\)")
_SCRIPT_MARK = re.compile(rf"\bT\.(?:get|plural)\(\s*({_STRING})(?:,\s*({_STRING}))?")
# The names under which modules import the functions of `core.languages`.
MARKS = frozenset({"_", "gettext", "mark", "mark_stored", "gettext_lazy"})
PLURALS = frozenset({"ngettext"})
# Between the singular and the plural in a .mo.
NUL = "\0"


def main() -> int:
    """Write each .mo and print what is missing or unused; return the exit code."""
    problems = []
    for path in [*CATALOGS, *SCRIPT_CATALOGS]:
        messages = read_catalog(path)
        path.with_suffix(".mo").write_bytes(compile_catalog(messages))
        marked = marked_script_messages() if path in SCRIPT_CATALOGS else marked_messages()
        known, wanted = set(messages) - {""}, set(marked)
        problems += [f"{path}: no translation of {message!r}" for message in sorted(wanted - known)]
        problems += [f"{path}: unused: {message!r}" for message in sorted(known - wanted)]
    print("\n".join(problems) or "All sentences are translated.")  # noqa: T201
    return 1 if problems else 0


def marked_messages() -> dict[str, str]:
    """Return the marked messages of the sources with the place of each. Plurals are joined by a NUL."""
    found: dict[str, str] = {}
    for folder in SOURCES:
        for path in sorted(Path(folder).rglob("*.py")):
            for call in _calls(ast.parse(path.read_text())):
                name = call.func.id if isinstance(call.func, ast.Name) else ""
                texts = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
                if name in MARKS and texts:
                    found.setdefault(str(texts[0]), f"{path}:{call.lineno}")
                elif name in PLURALS:
                    found.setdefault(NUL.join(map(str, texts[:2])), f"{path}:{call.lineno}")
    for form in forms_of_notifications():
        found.setdefault(form, "notifications/rules.py")
    for path in TEMPLATES:
        for message in template_messages(path.read_text()):
            found.setdefault(message, str(path))
    return found


def forms_of_notifications() -> list[str]:
    """Return the forms of titles, details and outcomes of notifications, which their table marks as a whole."""
    if not apps.ready:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        django.setup()
    from notifications.translation import forms_of_rules

    return list(forms_of_rules())


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
