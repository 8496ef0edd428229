"""List unmarked texts of templates, scripts and refusals that people see: `python -m tests.unmarked_texts`."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

from django.template.base import Lexer, TokenType

# The templates and scripts that must be marked as a whole.
TEMPLATES = (
    "templates/[0-9]*.html",
    "templates/admin/*.html",
    "templates/admin/*/*.html",
    "templates/admin/*/*/*.html",
    "templates/account/*.html",
    "templates/console/*.html",
    "templates/console/board/*.html",
    "templates/console/leads/*.html",
    "templates/console/notices/*.html",
    "templates/console/outbox/*.html",
    "templates/console/reports/*.html",
    "templates/console/schedules/*.html",
    "templates/console/timeline/*.html",
    "templates/join.html",
    "templates/locked_out.html",
    "templates/mfa/*.html",
    "templates/mfa/*/*.html",
    "templates/portal/*.html",
    "templates/set_password.html",
    "templates/shown_once.html",
    "templates/sso/*.html",
    "templates/unfold/*/*.html",
    "templates/usersessions/*.html",
)
SCRIPTS = (
    "alerts", "board", "filters", "keys", "live", "map", "map_picker", "new_job", "outbox", "page", "passkeys",
    "press", "reports", "select", "timeline", "tour",
)  # fmt: skip
# Modules whose refusals and messages people read on pages. Those of the API stay in English.
MODULES = (
    "accounts/*.py",
    "accounts/admin/*.py",
    "accounts/limits.py",
    "accounts/saved_views/*.py",
    "dispatch/capacity/admin.py",
    "dispatch/capacity/rules.py",
    "dispatch/console/**/*.py",
    "accounts/sso/*.py",
    "dispatch/*/models.py",
    "dispatch/*/models/*.py",
    "dispatch/core/http/ssrf.py",
    "dispatch/core/web/form_fields.py",
    "dispatch/core/phone_numbers.py",
    "dispatch/jobs/*.py",
    "dispatch/jobs/admin/*.py",
    "dispatch/jobs/public/*.py",
    "dispatch/jobs/rules/*.py",
    "dispatch/jobs/services/*.py",
    "dispatch/leads/admin/*.py",
    "dispatch/leads/services/*.py",
    "dispatch/outbox/admin/*.py",
    "dispatch/outbox/validators.py",
    "dispatch/outbox/services/*.py",
    "dispatch/schedules/admin/*.py",
    "dispatch/schedules/services/*.py",
    "dispatch/technicians/admin/*.py",
    "dispatch/technicians/services.py",
    "dispatch/telephony/admin/*.py",
    "notifications/admin/*.py",
    "notifications/models/*.py",
    "notifications/channels/kinds.py",
    "notifications/services/*.py",
)
# Exceptions and functions whose texts people read.
REFUSALS = frozenset(
    {
        "ActionRefused", "AmbiguousPerson", "BadFile", "CodeNotSent", "CodeRefused", "Conflict", "CustomerRefusal",
        "FormRejected", "LeadConflict", "NotInThisStatus", "TestRefused", "Unprocessable", "ValidationError",
        "_refuse", "add_error", "raise_illegal_transition", "with_note",
    }
)  # fmt: skip
# Names of dictionaries whose values are errors of fields.
ERRORS = frozenset({"errors", "problems"})
MESSAGES = frozenset({"success", "warning", "error", "info"})
MARKS = frozenset({"_", "gettext", "ngettext", "mark", "mark_stored", "gettext_lazy"})
# Names, units, keys and examples, which no language changes.
ALLOWED = frozenset(
    {
        "Dispatch",
        "CSV",
        "PNG",
        "Esc",
        "Enter",
        "HTTP",
        "POST",
        "STOP",
        "START",
        "URL",
        "Webhook",
        "min",
        "phones",
        "webhook-id",
    }
)
EXAMPLES = frozenset(
    {
        "0 9 * * MON#1", "FREQ=MONTHLY;BYDAY=-1FR", "data.priority == 'emergency'", "job.assigned", "job:7",
        "wants_quote", "webhook-id", "https://www.example.com/welcome.mp3", '{"week": 49}',
    }
)  # fmt: skip
ATTRIBUTES = frozenset({"title", "aria-label", "placeholder", "alt", "label", "data-confirm", "aria-description"})
# Elements whose content is no text.
_HIDDEN = frozenset({"script", "style", "kbd", "code", "svg"})
_LETTERS = re.compile(r"[^\W\d_]{2,}")
# The text that a filter shows instead of an empty value, or for true and false, unless it is marked.
_FALLBACK = re.compile(r"\|\s*(?:default|default_if_none|yesno):(?:\"([^\"]*)\"|'([^']*)')")
# A script's literal that looks like a text: it begins with a capital letter or has several words.
_LITERAL = re.compile(r'"((?:[^"\\\n]|\\.)*)"|`((?:[^`\\]|\\.)*)`')
_TEXT = re.compile(r"^\s?(?:[A-Z][a-z']+(?:[ .,:…?!]|$)|[a-z']+(?: [a-z']+){2,}[ .,:?!]?)")
_MARKED = re.compile(r"\bT\.(?:get|plural)\((?:[^()]|\([^()]*\))*\)")
_COMMENT = re.compile(r"/\*.*?\*/|(?<![:\"'])//[^\n]*", re.DOTALL)
# Literals of scripts that are no texts: names of keys, of interfaces and of headers.
ALLOWED_LITERALS = re.compile(
    r"^(?:Arrow\w+|Escape|Enter|Home|End|Tab|Delete|Page\w+|Shift|TEXTAREA|X-[\w-]+|HX-[\w-]+|Content-Type|"
    r"Accept(?:-Language)?|Error|HTTP |DOMContentLoaded|Notification|button plain .*|map tiles card)$"
)


def main() -> int:
    """Print what is not marked; return the exit code."""
    found = find_unmarked()
    print("\n".join(found) or "All texts are marked.")  # noqa: T201
    return 1 if found else 0


def find_unmarked() -> list[str]:
    """Return the unmarked texts, each with its file."""
    templates = sorted(path for pattern in TEMPLATES for path in Path().glob(pattern))
    found = [f"{path}: {text}" for path in templates for text in unmarked_in_template(path.read_text())]
    for name in SCRIPTS:
        path = Path(f"static/dispatch/{name}.js")
        found += [f"{path}: {text}" for text in unmarked_in_script(path.read_text())]
    modules = sorted({path for pattern in MODULES for path in Path().glob(pattern)})
    return found + [f"{path}: {text}" for path in modules for text in unmarked_in_module(path.read_text())]


def unmarked_in_template(source: str) -> list[str]:
    """Return the texts and attributes of a template that stand outside `translate` and `blocktranslate`.

    Those that its filters show instead of a value are among them.
    """
    parts, is_inside = [], False
    fallbacks: list[str] = []
    for token in Lexer(source).tokenize():
        if token.token_type is TokenType.TEXT and not is_inside:
            parts.append(token.contents)
        elif token.token_type is TokenType.BLOCK:
            name = token.contents.split()[0]
            is_inside = name in ("blocktranslate", "comment") or (
                is_inside and name not in ("endblocktranslate", "endcomment")
            )
            # A tag between two words, so that neither joins the other, nor the quotes of an attribute.
            parts.append(" ")
        elif token.token_type is TokenType.VAR:
            parts.append("1")
            fallbacks += [match[1] or match[2] or "" for match in _FALLBACK.finditer(token.contents)]
    reader = _Reader()
    reader.feed("".join(parts))
    reader.close()
    return [text for text in [*reader.texts, *fallbacks] if _is_text(text) and text not in EXAMPLES]


def unmarked_in_script(source: str) -> list[str]:
    """Return the literals of a script that look like texts and stand outside `T.get` and `T.plural`."""
    code = _MARKED.sub("", _COMMENT.sub("", source))
    texts = [match[1] or match[2] or "" for match in _LITERAL.finditer(code)]
    return [text for text in texts if _TEXT.match(text) and not ALLOWED_LITERALS.match(text)]


def unmarked_in_module(source: str) -> list[str]:
    """Return the texts of refusals and messages of a module that stand outside `gettext`, `mark` and their kin."""
    given = (part for node in ast.walk(ast.parse(source)) for part in _parts_of(node))
    return [text for part in given for text in _literals(part) if _TEXT.match(text) or " " in text.strip()]


def _parts_of(node: ast.AST) -> list[ast.expr]:
    """Return the expressions of a node that people read: of a refusal, a message, or an error of a field."""
    if isinstance(node, ast.Call) and _is_refusal(node):
        return [*node.args, *(one.value for one in node.keywords if not one.arg)]
    if isinstance(node, ast.Assign) and any(map(_is_error, node.targets)):
        return [node.value]
    return []


def _is_error(target: ast.expr) -> bool:
    """Return whether the target is the text of a refusal's class, or an entry of the errors of a form or model."""
    if isinstance(target, ast.Subscript):
        return isinstance(target.value, ast.Name) and target.value.id in ERRORS
    return isinstance(target, ast.Name) and target.id == "default_detail"


def _is_refusal(call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Name):
        return function.id in REFUSALS
    if not isinstance(function, ast.Attribute):
        return False
    of = function.value.id if isinstance(function.value, ast.Name) else ""
    return function.attr in REFUSALS or (of == "messages" and function.attr in MESSAGES)


def _literals(node: ast.AST) -> Iterator[str]:
    """Yield the literals of an expression, without those that are marked, and without keys."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MARKS:
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else "1" for part in node.values]
        if re.search(r"[^\W\d_]{2,}", "".join(map(str, parts))):
            yield "".join(map(str, parts))
    elif isinstance(node, ast.Dict):
        for value in node.values:
            yield from _literals(value)
    else:
        for child in ast.iter_child_nodes(node):
            yield from _literals(child)


def _is_text(text: str) -> bool:
    return bool(set(_LETTERS.findall(text)) - ALLOWED)


class _Reader(HTMLParser):
    """Collect the texts that people see or hear."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self._hidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += self._spoken(attrs)
        if tag in _HIDDEN or ("class", "material-symbols-outlined") in attrs:
            self._hidden.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._hidden and self._hidden[-1] == tag:
            self._hidden.pop()

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.texts.append(" ".join(data.split()))

    def _spoken(self, attrs: list[tuple[str, str | None]]) -> Iterator[str]:
        return (value for name, value in attrs if name in ATTRIBUTES and value)


if __name__ == "__main__":
    sys.exit(main())
