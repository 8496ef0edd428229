"""Format values of schedules for the admin pages, and apply actions to several rows."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import messages
from django.db.models import QuerySet
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from rest_framework.exceptions import APIException

from accounts.admin.base import OwnedAdmin


def list_occurrences(occurrences: list[dict[str, Any]]) -> str:
    """List occurrences with the notes that explain their times."""
    rows = (
        (
            time["words"],
            gettext(", moved: clocks go forward") if time["moved"] else "",
            gettext(", runs {seconds:g} s later").format(seconds=time["delay_s"]) if time["delay_s"] else "",
        )
        for time in occurrences
    )
    return format_html("<ol>{}</ol>", format_html_join("", "<li>{}{}{}</li>", rows))


def link(own: OwnedAdmin, row: Any, text: str) -> str:
    """Link to the row's admin page."""
    name = f"{own.admin_site.name}:{row._meta.app_label}_{row._meta.model_name}_change"
    at = reverse(name, args=[row.pk])
    return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">{}</a>', at, text)


def exact(moment: datetime, zone: str) -> str:
    """Format the local date and time to the second, with the zone's name."""
    return f"{moment.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S %Z}"


def apply_to_each(request: Any, do: Any, rows: QuerySet, outcome: str) -> None:
    """Apply the action to each row, and report how many succeeded and why the others did not."""
    done, refused = 0, set()
    for pk in rows.order_by("pk").values_list("pk", flat=True):
        try:
            do(pk, actor=request.actor)
            done += 1
        except APIException as error:
            refused.add(str(error.detail))
    if done:
        messages.success(request, outcome.format(count=done))
    if refused:
        messages.warning(request, " ".join(sorted(refused)))
