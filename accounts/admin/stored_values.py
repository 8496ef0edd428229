"""Show stored JSON in the admin: what people entered as labels and values, and what programs exchange as JSON."""

from __future__ import annotations

import json
from typing import Any

from django.db.models import Model
from django.utils.html import format_html, format_html_join
from django.utils.text import capfirst
from django.utils.translation import gettext

from accounts.admin.history import name_of

# What is nested deeper is shown as JSON.
MAX_DEPTH = 3


def list_values(value: Any, model: type[Model] | None = None, *, depth: int = MAX_DEPTH) -> str:
    """Return an object as a list of labels and values, and a list as a list.

    With `model`, the labels are those of its fields, or the keys in words. Without, they are the keys.
    """
    if value in (None, "", [], {}):
        return "—"
    if isinstance(value, bool):
        return gettext("yes") if value else gettext("no")
    if not isinstance(value, dict | list):
        return str(value)
    if depth == 0:
        return show_json(value)
    if isinstance(value, list):
        items = ((list_values(item, model, depth=depth - 1),) for item in value)
        return format_html('<ul class="values">{}</ul>', format_html_join("", "<li>{}</li>", items))
    rows = (
        (capfirst(name_of(key, model)) if model else key, list_values(item, model, depth=depth - 1))
        for key, item in value.items()
    )
    return format_html(
        '<dl class="values">{}</dl>', format_html_join("", "<div><dt>{}</dt><dd>{}</dd></div>", rows)
    )


def list_pairs(value: Any) -> list[tuple[str, str]]:
    """Return the keys of an object in alphabetical order, each with its value as `list_values` shows it."""
    return [(key, list_values(value[key])) for key in sorted(value)] if isinstance(value, dict) else []


def show_json(value: Any) -> str:
    """Return JSON indented, in a block whose long lines wrap."""
    return show_text(json.dumps(value, indent=2, ensure_ascii=False))


def show_body(text: str) -> str:
    """Return the body of a request or response: JSON indented, any other text as it is."""
    try:
        return show_json(json.loads(text))
    except (ValueError, RecursionError):
        return show_text(text)


def show_text(text: str) -> str:
    """Return a text in a monospaced block whose long lines wrap."""
    return format_html('<pre class="whitespace-pre-wrap break-all">{}</pre>', text)
