"""Define OwnedAdmin, the base of every admin: users see, reference and change only their organizations' rows.

    from accounts.admin.base import ACT, OwnedAdmin, OwnedTabularInline, VIEW

    class ShiftInline(OwnedTabularInline):            # rows get the organization of their parent
        model = Shift
        dispatcher_may = VIEW                         # Admins may do everything unless `admin_may` says less

    @admin.register(Technician)
    class TechnicianAdmin(OwnedAdmin):
        dispatcher_may = ACT                          # {"view", "act"} and nothing else
        list_display = ["name", "phone", "on_duty"]   # users of several organizations get one more column
        list_filter = ["skills", "on_duty"]           # relations offer only visible rows
        autocomplete_fields = ["skills"]              # never raw_id_fields: they disclose names
        search_fields = ["name"]
        inlines = [ShiftInline]
        actions = ["switch_off"]
        actions_detail = ["pause"]

        @admin.action(description="Switch off duty", permissions=["act"])
        def switch_off(self, request, queryset):      # only rows on which the user has the permission
            for row in queryset: services.set_duty(row.pk, False, actor=request.actor)

        @action(description="Pause", permissions=["act"], dialog={"title": "Pause the job?", ...})
        def pause(self, request, form, object_id):    # the row is known to belong to the user's organization
            services.pause(object_id, actor=request.actor)
            return self.back_to(object_id)

Fields: do not list `organization`. It is preset and hidden for members of one organization, chosen by members of
several when they add a row, and never changed afterwards. State changes belong to services: override `save_model`
and `delete_model` to call them. A service's refusal (a Conflict, any APIException below 500) becomes a message;
with `service_checks_deletion`, it replaces Django's own check for related rows.
An action without permissions requires "change". A custom `form` derives from OwnedForm. Unfold's actions
(`actions_list`, `_row`, `_detail`) run by GET, so each must have a `dialog` (a POST with the CSRF token), or be
listed in `read_only_actions`. Bulk actions ask for confirmation (`confirmation`): the description "Pause: no new
calls" provides the button and its explanation; those in `actions_without_asking` do not ask. For models
without an edit form, set `admin_may = ACT`. A row's history shows its events (`history`); `subject` names its
model in the event log if that differs from the model's name. A field of a row, also of one in an inline, is in the
form's `changed_data` only if it differs from what the page showed, and only `changed_columns` are written: others
may have changed the row since.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import structlog
from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, ImproperlyConfigured, ObjectDoesNotExist, PermissionDenied
from django.db import OperationalError, models, transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext
from phonenumber_field.formfields import PhoneNumberField
from rest_framework.exceptions import APIException
from unfold.admin import ModelAdmin
from unfold.dataclasses import UnfoldAction

from accounts.admin import filters as admin_filters
from accounts.admin import widgets
from accounts.admin.confirmation import ConfirmationMixin
from accounts.admin.history import EventHistoryMixin
from accounts.admin.inlines import OwnedStackedInline, OwnedTabularInline
from accounts.admin.overtaken_requests import repeat_if_overtaken
from accounts.admin.tenant_scope import (
    ACT,
    EVERYTHING,
    VIEW,
    OwnedForm,
    RoleRules,
    changed_columns,
    owned_filter,
)
from accounts.models import Organization
from accounts.phone_inputs import use_region
from accounts.scoping import OwnedModel
from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.db.errors import is_conflict
from dispatch.core.ids import read_id
from dispatch.core.phone_numbers import InvalidPhone, format_national, parse_phone
from dispatch.core.stored_texts import stored_name

__all__ = [
    "ACT", "EVERYTHING", "VIEW", "AuditedAdmin", "OwnedAdmin", "OwnedForm", "OwnedStackedInline",
    "OwnedTabularInline",
]  # fmt: skip

log = structlog.get_logger(__name__)

# Longer search texts are rejected.
MAX_SEARCH_WORDS, MAX_SEARCH_LENGTH = 20, 500
# Rows that a bulk action changes, each in its own transaction.
MAX_CHANGED = 500
# Rows that services delete in one transaction. Readers of events, of all organizations, wait until it ends.
MAX_DELETED = 500


class OwnedAdmin(ConfirmationMixin, EventHistoryMixin, RoleRules, ModelAdmin):
    """Base of every admin page. See the module docstring."""

    form = OwnedForm
    formfield_overrides = widgets.OVERRIDES
    read_only_actions: tuple[str, ...] = ()
    service_checks_deletion = False
    list_filter_submit = False
    list_per_page = 50

    def __init__(self, model: type[models.Model], admin_site: Any) -> None:
        super().__init__(model, admin_site)
        name = type(self).__name__
        if self.raw_id_fields:
            raise ImproperlyConfigured(
                f"{name}: raw_id_fields disclose names of other organizations' rows; use autocomplete_fields."
            )
        if self.list_editable or self.ordering_field:
            raise ImproperlyConfigured(f"{name}: list_editable does not check the permission on each row.")
        if not issubclass(self.form, OwnedForm):
            raise ImproperlyConfigured(f"{name}: the form must derive from OwnedForm.")
        self.readonly_preprocess_fields = dict.fromkeys(widgets.phone_fields(model), format_national)
        filters = (item[0] if isinstance(item, tuple | list) else item for item in self.list_filter)
        admin_filters.check_filters(name, filter(lambda path: isinstance(path, str), filters))
        for action in (
            *self._get_base_actions_list(),
            *self._get_base_actions_row(),
            *self._get_base_actions_detail(),
        ):
            own = action.action_name.removeprefix(f"{model._meta.app_label}_{model._meta.model_name}_")
            if not action.dialog and own not in self.read_only_actions:
                raise ImproperlyConfigured(f"{name}.{own}: an action that runs by GET needs a dialog.")

    # --- rows -------------------------------------------------------------------------------------------------
    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        rows = super().get_queryset(request)
        organizations = self.organizations_where(request, "view")
        return rows if organizations is None else self.of_organizations(rows, organizations)

    def of_organizations(self, rows: models.QuerySet, organizations: list[int]) -> models.QuerySet:
        """Return the `rows` of these organizations. Override it for a model that is not an OwnedModel."""
        return rows.filter(organization_id__in=organizations)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.permitted(request, "view")

    # --- lists ------------------------------------------------------------------------------------------------
    def sees_several(self, request: HttpRequest) -> bool:
        """Return whether the user sees rows of more than one organization."""
        organizations = self.organizations_where(request, "view")
        return organizations is None or len(organizations) > 1

    def get_changelist_instance(self, request: HttpRequest) -> Any:
        """Without search and filters, the list shows all: omit the theme's "12 results (Show all)"."""
        changelist = super().get_changelist_instance(request)
        if not changelist.query and not changelist.has_active_filters:
            changelist.full_result_count = changelist.result_count
        return changelist

    def get_list_display(self, request: HttpRequest) -> list:
        columns = list(super().get_list_display(request))
        if issubclass(self.model, OwnedModel) and self.sees_several(request) and "organization" not in columns:
            columns.append("organization")
        return [widgets.phone_column(self.model, name) for name in columns]

    def get_list_filter(self, request: HttpRequest) -> list:
        filters = [owned_filter(self.model, item) for item in super().get_list_filter(request)]
        if issubclass(self.model, OwnedModel) and self.sees_several(request):
            filters.append(owned_filter(self.model, "organization"))
        return filters

    def lookup_allowed(self, lookup: str, value: Any, request: HttpRequest | None = None) -> bool:
        """Return whether the page offers a filter for this lookup (`admin_filters`); no other is accepted."""
        return request is not None and admin_filters.is_offered(self, request, lookup, value)

    def get_search_results(
        self, request: HttpRequest, queryset: models.QuerySet, search_term: str
    ) -> tuple[models.QuerySet, bool]:
        """Search as Django does, but reject long texts.

        Each word adds conditions to the query: thousands of words would occupy a thread for minutes.
        """
        if len(search_term) > MAX_SEARCH_LENGTH or len(search_term.split()) > MAX_SEARCH_WORDS:
            raise BadRequest(gettext("Search for at most {count} words.").format(count=MAX_SEARCH_WORDS))
        return super().get_search_results(request, queryset, self._stored_form(request, search_term))

    def _stored_form(self, request: HttpRequest, text: str) -> str:
        """Return a formatted phone number as it is stored, if the page searches phones; other texts unchanged."""
        searched = {name.lstrip("^=@") for name in self.get_search_fields(request)}
        if text.isdigit() or searched.isdisjoint(widgets.phone_fields(self.model)):
            return text
        try:
            return str(parse_phone(text, getattr(request.organization, "default_region", "")).as_e164)
        except InvalidPhone:
            return text

    def get_list_select_related(self, request: HttpRequest) -> Any:
        relations = super().get_list_select_related(request)
        if not isinstance(relations, bool) and "organization" in self.get_list_display(request):
            return [*relations, "organization"]
        return relations

    def response_action(self, request: HttpRequest, queryset: models.QuerySet) -> Any:
        """Confirm the action, and pass it only the rows on which the user holds its permissions."""
        if None in map(read_id, request.POST.getlist(ACTION_CHECKBOX_NAME)):
            raise BadRequest(gettext("The selection contains an invalid row."))
        chosen = request.POST.getlist("action")
        for name in set(chosen) & set(self.get_actions(request)):
            function = self.get_actions(request)[name][0]
            needed = getattr(function, "allowed_permissions", ["change"])
            for permission in needed:
                organizations = self.organizations_where(request, permission)
                if organizations is not None:
                    queryset = self.of_organizations(queryset, organizations)
            if (page := self.asks(request, name, queryset)) is not None:
                return page
        if "delete_selected" in chosen:
            with transaction.atomic():  # a refusal undoes the entries that Django has logged before
                return super().response_action(request, queryset)
        return super().response_action(request, queryset)

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """List the related rows, unless the service itself refuses to delete a row that is in use.

        Raises Conflict if there are too many for the service.
        """
        if self._deletes_by_service() and len(objs[: MAX_DELETED + 1]) > MAX_DELETED:
            raise Conflict(
                gettext("Delete at most {count} rows at once. Nothing was deleted.").format(count=MAX_DELETED)
            )
        if not self.service_checks_deletion:
            listed, counts, needed, protected = super().get_deleted_objects(objs, request)
            return _named_rows(listed), counts, needed, protected
        return [str(row) for row in objs], {self.opts.verbose_name_plural: len(objs)}, set(), []

    def _deletes_by_service(self) -> bool:
        return type(self).delete_model is not ModelAdmin.delete_model

    def delete_queryset(self, request: HttpRequest, queryset: models.QuerySet) -> None:
        """Delete each row by its service, or none. Raises a refusal that names its row.

        Without a service, all are deleted at once.
        """
        if not self._deletes_by_service():
            super().delete_queryset(request, queryset)
            return
        for row in queryset:
            try:
                self.delete_model(request, row)
            except APIException as error:
                if error.status_code >= 500:
                    raise
                raise Conflict(f"{row}: {error.detail} {gettext('Nothing was deleted.')}") from error

    def change_each(
        self,
        request: HttpRequest,
        rows: models.QuerySet,
        change: Callable[[Any], bool],
        log: str,
        refusals: tuple[type[Exception], ...] = (),
    ) -> tuple[int, int]:
        """Change each row by a service. Return how many `change` changed (True), and how many it did not (False).

        Each change is logged in the admin's history at once. A row that is locked, or refused with one of
        `refusals`, or that someone else has removed, is named in a message and does not stop the others. Raises
        Conflict if there are more than MAX_CHANGED.
        """
        found = list(rows[: MAX_CHANGED + 1])
        if len(found) > MAX_CHANGED:
            words = gettext("Change at most {count} rows at once. Nothing was changed.")
            raise Conflict(words.format(count=MAX_CHANGED))
        caught: tuple[type[Exception], ...] = (OperationalError, self.model.DoesNotExist, *refusals)
        changed = same = 0
        for row in found:
            try:
                is_changed = change(row)
            except caught as error:
                messages.error(request, f"{row}: {_why_refused(error)}")
                continue
            if is_changed:
                self.log_change(request, row, log)
            changed, same = changed + is_changed, same + (not is_changed)
        return changed, same

    # --- refusals ---------------------------------------------------------------------------------------------
    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        view = super().changeform_view
        return self._report_refusals(request, repeat_if_overtaken, request, view, object_id, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        """Show the list, or run an action. Only the deletion is one transaction, and can be repeated."""
        view: Callable[..., Any] = super().changelist_view
        if "delete_selected" in request.POST.getlist("action"):
            return self._report_refusals(request, repeat_if_overtaken, request, view, *args, **kwargs)
        return self._report_refusals(request, view, request, *args, **kwargs)

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._report_refusals(request, repeat_if_overtaken, request, super().delete_view, *args, **kwargs)

    def _report_refusals(self, request: HttpRequest, view: Callable, *args: Any, **kwargs: Any) -> Any:
        """Show a service's refusal (such as a Conflict) as a message, and that a row of an action is gone."""
        try:
            return view(*args, **kwargs)
        except self.model.DoesNotExist as error:
            if request.method != "POST":
                raise
            log.warning("admin_row_removed", path=request.path, error=str(error))
            messages.error(
                request, gettext("Someone else has removed a row meanwhile. Check what was done, and try again.")
            )
        except APIException as error:
            if error.status_code >= 500:
                raise
            messages.error(request, str(error))
        return HttpResponseRedirect(request.get_full_path())

    # --- forms ------------------------------------------------------------------------------------------------
    def get_fieldsets(self, request: HttpRequest, obj: models.Model | None = None) -> Any:
        fieldsets = [(title, {**options}) for title, options in super().get_fieldsets(request, obj)]
        if not issubclass(self.model, OwnedModel):
            return fieldsets
        for _, options in fieldsets:
            options["fields"] = [field for field in options["fields"] if field != "organization"]
        editable = self.permitted(request, "change", obj) if obj else self.permitted(request, "add")
        if fieldsets and (editable or self.sees_several(request)):
            fieldsets[0][1]["fields"] = ["organization", *fieldsets[0][1]["fields"]]
        return fieldsets

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        form = super().get_form(request, obj, change, **kwargs)
        if issubclass(self.model, OwnedModel) and (field := form.base_fields.get("organization")):
            self._prepare_organization(field, request, obj)
        for field in form.base_fields.values():  # of a row without an organization; OwnedForm knows others
            if isinstance(field, PhoneNumberField):
                use_region(field, getattr(request.organization, "default_region", ""))
        return form

    def _prepare_organization(self, field: Any, request: HttpRequest, obj: models.Model | None) -> None:
        organizations = self.organizations_where(request, "change" if obj else "add")
        if organizations is not None:
            field.queryset = Organization.objects.filter(pk__in=organizations)
        choices = list(field.queryset[:2])
        if len(choices) == 1:
            field.initial = choices[0].pk
            if organizations is not None:
                field.widget = forms.HiddenInput()
        field.disabled = obj is not None
        for button in ("can_add_related", "can_change_related", "can_delete_related", "can_view_related"):
            if hasattr(field.widget, button):
                setattr(field.widget, button, False)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Write a new row, or the columns that the form changed."""
        obj.save(update_fields=changed_columns(form) if change else None)

    # --- unfold's actions ---------------------------------------------------------------------------------------
    def get_unfold_action(self, action: str) -> UnfoldAction:
        unfold_action = super().get_unfold_action(action)
        unfold_action.method = self._guarded(unfold_action.method)
        return unfold_action

    def _guarded(self, method: Callable) -> Callable:
        """Wrap the action: load the row if the user may see it, then check the permissions on it.

        A dialog is a part of the row's page: a browser that opens its address gets that page.
        """

        @functools.wraps(method)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if (object_id := kwargs.get("object_id")) is not None:
                row = self.get_object(request, object_id)
                if row is None:
                    raise Http404
                for permission in getattr(method, "allowed_permissions", ["change"]):
                    if "." not in permission and not getattr(self, f"has_{permission}_permission")(request, row):
                        raise PermissionDenied
            if (
                request.method == "GET"
                and getattr(method, "dialog", None)
                and not request.headers.get("HX-Request")
            ):
                return HttpResponseRedirect(self._page_of(object_id))
            return self._report_refusals(request, method, request, *args, **kwargs)

        return guarded

    def _page_of(self, object_id: Any) -> str:
        """Return the address of the row's page, or of the list."""
        name = f"{self.admin_site.name}:{self.model._meta.app_label}_{self.model._meta.model_name}"
        return reverse(f"{name}_change", args=[object_id]) if object_id else reverse(f"{name}_changelist")

    def back_to(self, object_id: Any) -> HttpResponse:
        """Return the response of an action with a dialog: the browser reopens the row's page."""
        return HttpResponse(headers={"HX-Redirect": self._page_of(object_id)})


class AuditedAdmin(OwnedAdmin):
    """Base of pages whose rows have no service: each change appends an Event, as the API does."""

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            if not change:
                self._append_event(request, obj, "added")
            elif form.changed_data or self.inlines:  # rows under it may have changed
                self._append_event(request, obj, "changed", fields=sorted(form.changed_data))

    def delete_model(self, request: HttpRequest, obj: Any) -> None:
        with transaction.atomic():
            self._append_event(request, obj, "removed")
            if not obj.delete()[0]:
                raise self.model.DoesNotExist

    def _append_event(self, request: HttpRequest, row: Any, verb: str, **data: Any) -> None:
        kind = f"{self.subject or row._meta.model_name}.{verb}"
        events.append(row.organization_id, kind, row.pk, actor=request.actor, name=stored_name(row)[:120], **data)


def render_secret_once(
    model_admin: OwnedAdmin, request: HttpRequest, title: str, text: str, secret: str
) -> HttpResponse:
    """Render a page that shows a secret once.

    The response answers the request that created the secret, so the secret enters no cookie, session or log.
    """
    context = {
        **model_admin.admin_site.each_context(request),
        "opts": model_admin.opts,
        "title": title,
        "text": text,
        "secret": secret,
    }
    return TemplateResponse(request, "shown_once.html", context, headers={"Cache-Control": "no-store"})


def _why_refused(error: Exception) -> str:
    """Return why a row was not changed. Raise the error again if the database has another problem."""
    if isinstance(error, ObjectDoesNotExist):
        return gettext("Removed by someone else")
    if not isinstance(error, OperationalError):
        return str(error)
    if not is_conflict(error):
        raise error
    return gettext("Someone else is changing this. Try again in a moment.")


def _named_rows(listed: list[Any]) -> list[Any]:
    """Leave rows of relationships out of Django's nested list: they have no names, and the summary counts them."""
    rows = [_named_rows(row) if isinstance(row, list) else row for row in listed]
    return [row for row in rows if row and (isinstance(row, list) or not re.search(r" object \(\d+\)$", str(row)))]
