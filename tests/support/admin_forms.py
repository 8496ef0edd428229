"""Forms of the admin, as a browser opens and sends them."""

from __future__ import annotations

import html
import re
from typing import Any

from django.contrib.postgres.forms import SimpleArrayField
from django.db.models import Model
from django.forms import MultipleHiddenInput
from django.test import Client
from django.urls import reverse


def path_of(row: Model) -> str:
    """Return the address of the row's page."""
    return reverse(f"admin:{row._meta.app_label}_{row._meta.model_name}_change", args=[row.pk])


def open_form(person: Client, row: Model) -> dict[str, Any]:
    """Open the row's form in the admin. Return what a browser sends if nothing is changed."""
    return filled_in(person.get(path_of(row)))


def filled_in(page: Any) -> dict[str, Any]:
    """Return what a browser sends of the page's form if nothing is changed."""
    sent: dict[str, Any] = {}
    forms = [page.context["adminform"].form]
    for inline in page.context["inline_admin_formsets"]:
        forms += [inline.formset.management_form, *inline.formset.initial_forms]
    for bound in (bound for form in forms for bound in form):
        value = bound.value()
        if isinstance(value, list) and isinstance(bound.field, SimpleArrayField):
            value = ",".join(value)
        if value is not None and value is not False:
            sent[bound.html_name] = value
    for form in forms:
        for bound in form:
            if bound.field.show_hidden_initial:
                shown = re.findall(r' value="([^"]*)"', bound.as_hidden(only_initial=True))
                values = [html.unescape(value) for value in shown] or [""]
                is_many = isinstance(bound.field.hidden_widget(), MultipleHiddenInput)
                sent[bound.html_initial_name] = values if is_many else values[0]
    return sent


def send_form(person: Client, row: Model, form: dict[str, Any]) -> None:
    """Save the form on the row's page, and read the row again."""
    answer = person.post(path_of(row), form)
    assert answer.status_code == 302, answer.context["errors"]
    row.refresh_from_db()
