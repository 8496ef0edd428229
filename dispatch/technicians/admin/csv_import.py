"""CSV export and import of technicians in the admin. Viewers may export; Admins may import after a preview."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action

from accounts.models import Organization
from dispatch.core import clock, csv_files
from dispatch.core.csv_files import BadFile
from dispatch.core.stored_texts import mark_stored
from dispatch.technicians import csv_import
from dispatch.technicians.models import Technician

MAX_FILE_BYTES = 1024 * 1024
MAX_SHOWN = 200  # rows of each kind on the page
_LIST = "admin:technicians_technician_changelist"

CHANGED = mark_stored("Changed from a CSV file: {names}.")


class CsvImportMixin:
    """Mixin of TechnicianAdmin."""

    admin_site: Any
    model: type[Technician]
    actions_list = ["export_all", "import_file"]
    actions_without_asking: tuple[str, ...] = ("export_selected",)
    read_only_actions: tuple[str, ...] = ("export_all", "import_file")

    def get_urls(self) -> list:
        view = self.admin_site.admin_view(self.import_view)
        return [path("import/", view, name="technicians_technician_import"), *super().get_urls()]  # type: ignore[misc]

    # --- export -------------------------------------------------------------------------------------------------
    @action(description=_("Export as CSV"), permissions=["view"])
    def export_all(self, request: HttpRequest) -> HttpResponse:
        """Export all technicians visible to the user."""
        return self._file(request, self.get_queryset(request))  # type: ignore[attr-defined]

    @admin.action(description=_("Export as CSV"), permissions=["view"])
    def export_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse:
        """Export the selected technicians."""
        return self._file(request, queryset)

    def _file(self, request: HttpRequest, rows: QuerySet) -> HttpResponse:
        head, technicians = list(csv_import.EXPORTED), rows.order_by("name", "pk")
        cells: Iterable[list[Any]] = csv_import.export_rows(technicians)
        if self.sees_several(request):  # type: ignore[attr-defined]
            owners = [csv_files.escape_formula(technician.organization.name) for technician in technicians]
            head, cells = [*head, "organization"], ([*row, of] for row, of in zip(cells, owners, strict=True))
        return csv_files.csv_response(f"technicians-{clock.now():%Y-%m-%d}.csv", head, cells)

    # --- import -------------------------------------------------------------------------------------------------
    @action(description=_("Import from CSV"), permissions=["add"])
    def import_file(self, request: HttpRequest) -> HttpResponse:
        """Redirect to the upload page."""
        return HttpResponseRedirect(reverse("admin:technicians_technician_import"))

    def import_view(self, request: HttpRequest) -> HttpResponse:
        """Ask for a file, preview the effect of each row, and import after confirmation.

        If data has changed since the preview, the preview is shown again.
        """
        organizations = self._importable(request)
        if not organizations:
            raise PermissionDenied
        chosen = self._chosen(request, organizations)
        context: dict[str, Any] = {
            **self.admin_site.each_context(request),
            "title": gettext("Import technicians"),
            "opts": self.model._meta,
            "media": self.media,  # type: ignore[attr-defined]
            "organizations": organizations,
            "chosen": chosen,
            "most": csv_import.MAX_ROWS,
        }
        if request.method == "POST":
            try:
                return self._handle_upload(request, chosen, context)
            except BadFile as error:
                context["wrong"] = str(error)
        template = "admin/technicians/import.html"
        return TemplateResponse(request, template, context, status=422 if "wrong" in context else 200)

    def _handle_upload(
        self, request: HttpRequest, chosen: Organization | None, context: dict[str, Any]
    ) -> HttpResponse:
        if chosen is None:
            raise BadFile(gettext("Choose an organization."))
        text = request.POST.get("text", "")
        if "file" in request.FILES or not text:
            text = csv_files.as_text(request.FILES.get("file"), largest=MAX_FILE_BYTES)
        text = text.replace("\r\n", "\n")  # browsers send line ends as \r\n
        plan = csv_import.plan_import(chosen, csv_files.read_rows(text, needs="phone", most=csv_import.MAX_ROWS))
        seen = request.POST.get("digest")
        if seen == plan.digest and plan.of("new", "changed"):
            self._write_rows(request, chosen, plan)
            return HttpResponseRedirect(reverse(_LIST))
        groups = [
            (gettext("Rows with errors (skipped)"), plan.of("wrong")),
            (gettext("To add"), plan.of("new")),
            (gettext("To change"), plan.of("changed")),
        ]
        context |= {
            "plan": plan,
            "text": text,
            "same": len(plan.of("same")),
            "counts": {verdict: len(plan.of(verdict)) for verdict in ("wrong", "new", "changed")},
            "groups": [(words, lines[:MAX_SHOWN], len(lines) - MAX_SHOWN) for words, lines in groups if lines],
            "is_other": seen is not None and seen != plan.digest,
        }
        return TemplateResponse(request, "admin/technicians/import.html", context)

    def _write_rows(self, request: Any, organization: Organization, plan: csv_import.ImportPlan) -> None:
        """Write each valid row separately, so that a failed row doesn't block the others."""
        done = {"new": 0, "changed": 0}
        for line in plan.of("new", "changed"):
            verdict = line.verdict
            try:
                technician = csv_import.apply_row(line, organization, actor=request.actor)
            except ValidationError as refused:
                messages.error(
                    request,
                    gettext("Row {number}, {name}: {problems}").format(
                        number=line.number, name=line.name, problems=" ".join(refused.messages)
                    ),
                )
                continue
            except Technician.DoesNotExist:
                messages.error(
                    request,
                    gettext("Row {number}, {name}: this technician no longer exists.").format(
                        number=line.number, name=line.name
                    ),
                )
                continue
            done[verdict] += 1
            if verdict == "new":
                self.log_addition(request, technician, mark_stored("Added from a CSV file."))  # type: ignore[attr-defined]
            else:
                names = ", ".join(change.name for change in line.changes)
                self.log_change(request, technician, CHANGED.format(names=names))  # type: ignore[attr-defined]
        left = len(plan.of("wrong"))
        note = ngettext("{count} row with errors skipped.", "{count} rows with errors skipped.", left)
        messages.success(
            request,
            gettext("{new} added, {changed} changed.").format(**done)
            + (f" {note.format(count=left)}" if left else ""),
        )

    def _importable(self, request: HttpRequest) -> list[Organization]:
        """Return the organizations whose technicians the user may add and change."""
        organizations = Organization.objects.order_by("name")
        for permission in ("add", "change"):
            ids = self.organizations_where(request, permission)  # type: ignore[attr-defined]
            if ids is not None:
                organizations = organizations.filter(pk__in=ids)
        return list(organizations)

    def _chosen(self, request: Any, organizations: list[Organization]) -> Organization | None:
        if len(organizations) == 1:
            return organizations[0]
        current = getattr(request, "organization", None)
        requested_id = request.POST.get("organization") or (str(current.pk) if current is not None else "")
        return next((organization for organization in organizations if str(organization.pk) == requested_id), None)
