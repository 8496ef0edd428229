"""Technicians' lists as files in the admin: written out by who sees them, read in by Admins after a look."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from unfold.decorators import action

from accounts.models import Organization
from dispatch.core import clock, spreadsheets
from dispatch.core.spreadsheets import BadFile
from dispatch.technicians import sheets
from dispatch.technicians.models import Technician

LARGEST = 1024 * 1024
SHOWN = 200  # lines of a kind on the page
_LIST = "admin:technicians_technician_changelist"


class TechnicianSheets:
    """Mixin of TechnicianAdmin."""

    admin_site: Any
    model: type[Technician]
    actions_list = ["export_all", "import_file"]
    actions_without_asking: tuple[str, ...] = ("export_selected",)
    read_only_actions: tuple[str, ...] = ("export_all", "import_file")

    def get_urls(self) -> list:
        view = self.admin_site.admin_view(self.import_view)
        return [path("import/", view, name="technicians_technician_import"), *super().get_urls()]  # type: ignore[misc]

    # --- out ----------------------------------------------------------------------------------------------------
    @action(description="Export as CSV", permissions=["view"])
    def export_all(self, request: HttpRequest) -> HttpResponse:
        """Everyone whom the person sees."""
        return self._file(request, self.get_queryset(request))  # type: ignore[attr-defined]

    @admin.action(description="Export as CSV", permissions=["view"])
    def export_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse:
        """Those chosen."""
        return self._file(request, queryset)

    def _file(self, request: HttpRequest, rows: QuerySet) -> HttpResponse:
        head, found = list(sheets.WRITTEN), rows.order_by("name", "pk")
        cells: Iterable[list[Any]] = sheets.written(found)
        if self.sees_several(request):  # type: ignore[attr-defined]
            owners = [spreadsheets.safe(one.organization.name) for one in found]
            head, cells = [*head, "organization"], ([*row, of] for row, of in zip(cells, owners, strict=True))
        return spreadsheets.answer(f"technicians-{clock.now():%Y-%m-%d}.csv", head, cells)

    # --- in -----------------------------------------------------------------------------------------------------
    @action(description="Import from CSV", permissions=["add"])
    def import_file(self, request: HttpRequest) -> HttpResponse:
        """To the page that asks for the file."""
        return HttpResponseRedirect(reverse("admin:technicians_technician_import"))

    def import_view(self, request: HttpRequest) -> HttpResponse:
        """Asks for a file; shows what each line would do; does it when told to. What is written is what was shown:
        when something has changed since, it is shown again."""
        places = self._importable(request)
        if not places:
            raise PermissionDenied
        chosen = self._chosen(request, places)
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": "Import technicians",
            "opts": self.model._meta,
            "media": self.media,  # type: ignore[attr-defined]
            "organizations": places,
            "chosen": chosen,
            "most": sheets.MOST,
        }
        if request.method == "POST":
            try:
                return self._posted(request, chosen, context)
            except BadFile as error:
                context["wrong"] = str(error)
        template = "admin/technicians/import.html"
        return TemplateResponse(request, template, context, status=422 if "wrong" in context else 200)

    def _posted(self, request: HttpRequest, chosen: Organization | None, context: dict[str, Any]) -> HttpResponse:
        if chosen is None:
            raise BadFile("Choose an organization.")
        text = request.POST.get("text", "")
        if "file" in request.FILES or not text:
            text = spreadsheets.as_text(request.FILES.get("file"), largest=LARGEST)
        text = text.replace("\r\n", "\n")  # as which a browser sends it back
        plan = sheets.plan(chosen, spreadsheets.rows_of(text, needs="phone", most=sheets.MOST))
        seen = request.POST.get("digest")
        if seen == plan.digest and plan.of("new", "changed"):
            self._write(request, chosen, plan)
            return HttpResponseRedirect(reverse(_LIST))
        groups = [
            ("Lines with errors: they are left out", plan.of("wrong")),
            ("To be added", plan.of("new")),
            ("To be changed", plan.of("changed")),
        ]
        context |= {
            "plan": plan,
            "text": text,
            "same": len(plan.of("same")),
            "counts": {verdict: len(plan.of(verdict)) for verdict in ("wrong", "new", "changed")},
            "groups": [(words, lines[:SHOWN], len(lines) - SHOWN) for words, lines in groups if lines],
            "is_other": seen is not None and seen != plan.digest,
        }
        return TemplateResponse(request, "admin/technicians/import.html", context)

    def _write(self, request: Any, organization: Organization, plan: sheets.Plan) -> None:
        """Each good line by itself: one that fails holds up no other."""
        done = {"new": 0, "changed": 0}
        for line in plan.of("new", "changed"):
            verdict = line.verdict
            try:
                technician = sheets.apply(line, organization, actor=request.actor)
            except ValidationError as refused:
                messages.error(request, f"Line {line.number}, {line.name}: {' '.join(refused.messages)}")
                continue
            except Technician.DoesNotExist:
                messages.error(request, f"Line {line.number}, {line.name}: the technician is gone.")
                continue
            done[verdict] += 1
            if verdict == "new":
                self.log_addition(request, technician, "Added from a file.")  # type: ignore[attr-defined]
            else:
                names = ", ".join(change.name for change in line.changes)
                self.log_change(request, technician, f"Changed from a file: {names}.")  # type: ignore[attr-defined]
        left = len(plan.of("wrong"))
        note = f" {left} line{'' if left == 1 else 's'} with errors left out." if left else ""
        messages.success(request, f"{done['new']} added, {done['changed']} changed.{note}")

    def _importable(self, request: HttpRequest) -> list[Organization]:
        """Organizations whose technicians the person may add and change."""
        found = Organization.objects.order_by("name")
        for permission in ("add", "change"):
            ids = self.organizations_where(request, permission)  # type: ignore[attr-defined]
            if ids is not None:
                found = found.filter(pk__in=ids)
        return list(found)

    def _chosen(self, request: Any, places: list[Organization]) -> Organization | None:
        if len(places) == 1:
            return places[0]
        current = getattr(request, "organization", None)
        asked = request.POST.get("organization") or (str(current.pk) if current is not None else "")
        return next((one for one in places if str(one.pk) == asked), None)
