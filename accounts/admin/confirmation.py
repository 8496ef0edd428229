"""Ask for confirmation of bulk actions: show which rows are affected, how many, and the effect."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext

MAX_NAMED_ROWS = 50


class ConfirmationMixin:
    """Mixin of OwnedAdmin that confirms every action of a list.

    Actions in `actions_without_asking` run immediately: they change nothing important, or have their own page.
    """

    admin_site: Any
    model: Any
    actions_without_asking: tuple[str, ...] = ()

    def asks(self, request: HttpRequest, name: str, rows: QuerySet) -> HttpResponse | None:
        """Return the confirmation page of the action `name`, or None if it is confirmed or no row is selected.

        Asks again if the number of rows has changed since the user saw the page.
        """
        if name in self.actions_without_asking or name == "delete_selected":
            return None
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        everywhere = request.POST.get("select_across", "0") not in ("", "0")
        if not everywhere:
            rows = rows.filter(pk__in=chosen)
        count = rows.count()
        if not count:
            if chosen or everywhere:
                messages.warning(request, gettext("You can't perform this action on the selected items."))
            return None
        seen = request.POST.get("seen", str(count))
        if "confirmed" in request.POST and seen == str(count):
            return None
        description = str(self.get_actions(request)[name][2])  # type: ignore[attr-defined]
        verb, what = _verb_and_effect(description)
        opts = self.model._meta
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb}: {count:,} {opts.verbose_name if count == 1 else opts.verbose_name_plural}",
            "verb": verb,
            "what": what,
            "count": count,
            "seen": seen if seen != str(count) else "",
            "rows": [str(row) for row in rows[:MAX_NAMED_ROWS]],
            "more": count - MAX_NAMED_ROWS,
            # The list view needs at least one id, even when all rows are selected.
            "chosen": [0] if everywhere else list(rows.values_list("pk", flat=True)),
            "action": name,
            "everywhere": int(everywhere),
            "back": request.get_full_path(),
            "opts": opts,
            "media": self.media,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/ask_first.html", context)


def _verb_and_effect(description: str) -> tuple[str, str]:
    """Split "Pause (no more calls)" or "Pause: no more calls" into "Pause" and "No more calls"."""
    verb, effect = description, ""
    if " (" in description and description.endswith(")"):
        verb, _, effect = description[:-1].partition(" (")
    elif ":" in description:
        verb, _, effect = description.partition(":")
    effect = effect.strip().removesuffix(".")
    return verb.strip(), effect[:1].upper() + effect[1:]
