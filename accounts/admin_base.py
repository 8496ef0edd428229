"""OwnedAdmin: the base of every admin, in which nobody sees, names or changes another organization's rows.

    from accounts.admin_base import ACT, OwnedAdmin, OwnedTabularInline, VIEW

    class ShiftInline(OwnedTabularInline):            # rows get the organization of their parent
        model = Shift
        dispatcher_may = VIEW                         # Admins may do everything unless `admin_may` says less

    @admin.register(Technician)
    class TechnicianAdmin(OwnedAdmin):
        dispatcher_may = ACT                          # {"view", "act"}; what is not named is refused
        list_display = ["name", "phone", "on_duty"]   # an organization column is added for who sees several
        list_filter = ["skills", "on_duty"]           # relations offer only what may be seen
        autocomplete_fields = ["skills"]              # never raw_id_fields: they write out foreign names
        search_fields = ["name"]
        inlines = [ShiftInline]
        actions = ["switch_off"]
        actions_detail = ["pause"]

        @admin.action(description="Switch off duty", permissions=["act"])
        def switch_off(self, request, queryset):      # only rows on which the person holds the permission
            for row in queryset: services.set_duty(row.pk, False, actor=request.actor)

        @action(description="Pause", permissions=["act"], dialog={"title": "Pause the job?", ...})
        def pause(self, request, form, object_id):    # the row was checked; a foreign id never comes here
            services.pause(object_id, actor=request.actor)
            return self.back_to(object_id)

Fields: `organization` need not be listed; it is preset and hidden for who has one organization, chosen by who has
several when a row is added, and never changed afterwards. State changes belong to services: override `save_model`
and `delete_model` to call them where a model has some; what they refuse (a Conflict, any APIException below 500)
is told as a message. An action that names no permissions asks for "change". A custom `form` derives from
OwnedForm. Unfold's actions (`actions_list`, `_row`, `_detail`) run by GET, so each must have a `dialog` (a POST
with the CSRF token), or be named in `read_only_actions`. Actions on many rows ask first (`admin_asking`):
the description "Pause: no new calls" gives the button and what it says; those in `actions_without_asking` do not
ask. Models that nobody edits by form: `admin_may = ACT`. A row's history tells its events (`admin_history`);
`subject` names its model in the event log where that is not the model's name."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.core.exceptions import BadRequest, ImproperlyConfigured, PermissionDenied
from django.db import models
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from rest_framework.exceptions import APIException
from unfold.admin import ModelAdmin, StackedInline, TabularInline
from unfold.dataclasses import UnfoldAction
from unfold.forms import PaginationInlineFormSet

from accounts.admin_asking import AsksFirst
from accounts.admin_history import TellsEvents
from accounts.admin_scope import ACT, EVERYTHING, VIEW, OwnedForm, RoleRules, organization_id_of, owned_filter
from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.core.ids import read_id

__all__ = ["ACT", "EVERYTHING", "VIEW", "OwnedAdmin", "OwnedForm", "OwnedStackedInline", "OwnedTabularInline"]


class OwnedAdmin(AsksFirst, TellsEvents, RoleRules, ModelAdmin):
    """See the module."""

    form = OwnedForm
    read_only_actions: tuple[str, ...] = ()
    list_filter_submit = False
    list_per_page = 50

    def __init__(self, model: type[models.Model], admin_site: Any) -> None:
        super().__init__(model, admin_site)
        name = type(self).__name__
        if self.raw_id_fields:
            raise ImproperlyConfigured(f"{name}: raw_id_fields write out foreign names; use autocomplete_fields.")
        if self.list_editable or self.ordering_field:
            raise ImproperlyConfigured(f"{name}: list_editable does not ask for the permission on each row.")
        if not issubclass(self.form, OwnedForm):
            raise ImproperlyConfigured(f"{name}: the form must derive from OwnedForm.")
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
        """`rows` of these organizations; a model that is not an OwnedModel overrides it."""
        return rows.filter(organization_id__in=organizations)

    def has_module_permission(self, request: HttpRequest) -> bool:
        return self.permitted(request, "view")

    # --- lists ------------------------------------------------------------------------------------------------
    def sees_several(self, request: HttpRequest) -> bool:
        """Whether the person sees rows of more than one organization."""
        organizations = self.organizations_where(request, "view")
        return organizations is None or len(organizations) > 1

    def get_list_display(self, request: HttpRequest) -> list:
        columns = list(super().get_list_display(request))
        if issubclass(self.model, OwnedModel) and self.sees_several(request) and "organization" not in columns:
            columns.append("organization")
        return columns

    def get_list_filter(self, request: HttpRequest) -> list:
        found = [owned_filter(self.model, item) for item in super().get_list_filter(request)]
        if issubclass(self.model, OwnedModel) and self.sees_several(request):
            found.append(owned_filter(self.model, "organization"))
        return found

    def get_list_select_related(self, request: HttpRequest) -> Any:
        found = super().get_list_select_related(request)
        if not isinstance(found, bool) and "organization" in self.get_list_display(request):
            return [*found, "organization"]
        return found

    def response_action(self, request: HttpRequest, queryset: models.QuerySet) -> Any:
        """An action asks first, and gets only the rows on which the person holds the permissions it asks for."""
        if None in map(read_id, request.POST.getlist(ACTION_CHECKBOX_NAME)):
            raise BadRequest("What was chosen is no row.")
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
        return super().response_action(request, queryset)

    # --- refusals ---------------------------------------------------------------------------------------------
    def changeform_view(
        self, request: HttpRequest, object_id: str | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        return self._told(request, super().changeform_view, request, object_id, *args, **kwargs)

    def changelist_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._told(request, super().changelist_view, request, *args, **kwargs)

    def delete_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        return self._told(request, super().delete_view, request, *args, **kwargs)

    def _told(self, request: HttpRequest, view: Callable, *args: Any, **kwargs: Any) -> Any:
        """What a service refuses (a Conflict, say) is told as a message. An action that names no permissions asks
        for "change"."""
        try:
            return view(*args, **kwargs)
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

    # --- unfold's actions ---------------------------------------------------------------------------------------
    def get_unfold_action(self, action: str) -> UnfoldAction:
        found = super().get_unfold_action(action)
        found.method = self._guarded(found.method)
        return found

    def _guarded(self, method: Callable) -> Callable:
        """The action, after the row was found among the person's own and the permissions were asked on it."""

        @functools.wraps(method)
        def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            if (object_id := kwargs.get("object_id")) is not None:
                row = self.get_object(request, object_id)
                if row is None:
                    raise Http404
                for permission in getattr(method, "allowed_permissions", ["change"]):
                    if "." not in permission and not getattr(self, f"has_{permission}_permission")(request, row):
                        raise PermissionDenied
            return self._told(request, method, request, *args, **kwargs)

        return guarded

    def back_to(self, object_id: Any) -> HttpResponse:
        """What an action with a dialog answers: the browser opens the row's page again."""
        name = f"{self.admin_site.name}:{self.model._meta.app_label}_{self.model._meta.model_name}_change"
        return HttpResponse(headers={"HX-Redirect": reverse(name, args=[object_id])})


class OwnedInlineFormSet(PaginationInlineFormSet):
    """Rows of the parent's organization."""

    def full_clean(self) -> None:
        # Only now: a parent that is being added has no organization before its own form was checked.
        for form in self.forms:
            if isinstance(form.instance, OwnedModel) and form.instance.organization_id is None:
                form.instance.organization_id = organization_id_of(self.instance)
        super().full_clean()


class _OwnedInline(RoleRules):
    form = OwnedForm
    formset = OwnedInlineFormSet
    exclude: tuple[str, ...] = ("organization",)
    extra = 0

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        rows = super().get_queryset(request)  # type: ignore[misc]
        organizations = self.organizations_where(request, "view")
        return rows if organizations is None else rows.filter(organization_id__in=organizations)


class OwnedTabularInline(_OwnedInline, TabularInline):
    """Owned rows under their parent, as a table."""


class OwnedStackedInline(_OwnedInline, StackedInline):
    """Owned rows under their parent, as blocks."""
