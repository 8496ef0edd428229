"""What is done to many rows of a list at once asks first: how many, which, and what will happen."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

NAMED = 50


class AsksFirst:
    """Mixin of OwnedAdmin. Every action of a list asks, but for those in `actions_without_asking`: they change
    nothing that matters, or have a page of their own."""

    admin_site: Any
    model: Any
    actions_without_asking: tuple[str, ...] = ()

    def asks(self, request: HttpRequest, name: str, rows: QuerySet) -> HttpResponse | None:
        """The page that asks before the action `name`; None to go on, when it was answered, or nothing is chosen.
        When there are more or fewer rows than the person saw, it asks again."""
        if name in self.actions_without_asking or name == "delete_selected":
            return None
        chosen = request.POST.getlist(ACTION_CHECKBOX_NAME)
        everywhere = request.POST.get("select_across", "0") not in ("", "0")
        if not everywhere:
            rows = rows.filter(pk__in=chosen)
        count = rows.count()
        if not count:
            if chosen or everywhere:
                messages.warning(request, "Nothing that you may do this to was chosen.")
            return None
        seen = request.POST.get("seen", str(count))
        if "confirmed" in request.POST and seen == str(count):
            return None
        description = str(self.get_actions(request)[name][2])  # type: ignore[attr-defined]
        verb, _, what = description.partition(":")
        opts = self.model._meta
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb.strip()}: {count:,} {opts.verbose_name if count == 1 else opts.verbose_name_plural}",
            "verb": verb.strip(),
            "what": what.strip()[:1].upper() + what.strip()[1:],
            "count": count,
            "seen": seen if seen != str(count) else "",
            "rows": [str(row) for row in rows[:NAMED]],
            "more": count - NAMED,
            # The list's view wants at least one, also when all are meant.
            "chosen": [0] if everywhere else list(rows.values_list("pk", flat=True)),
            "action": name,
            "everywhere": int(everywhere),
            "back": request.get_full_path(),
            "opts": opts,
            "media": self.media,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/ask_first.html", context)
