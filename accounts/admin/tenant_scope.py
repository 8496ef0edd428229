"""Decide which organizations' rows a user may view or change in the admin.

OwnedAdmin builds on these role rules.
"""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.admin.utils import get_fields_from_path
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.db import models
from django.forms.models import InlineForeignKeyField
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext
from phonenumber_field.formfields import PhoneNumberField

from accounts.admin.widgets import ShownChoices
from accounts.models import Membership, Organization, User
from accounts.phone_inputs import use_region
from accounts.scoping import OwnedModel
from dispatch.core.ids import read_id, read_ids

VIEW = frozenset({"view"})
ACT = frozenset({"view", "act"})
EVERYTHING = frozenset({"view", "add", "change", "delete", "act"})


class RoleRules:
    """Mixin of OwnedAdmin and its inlines: derive Django's has_…_permission from memberships.

    `admin_may` and `dispatcher_may` name what each role may do with this model in its organization: view, add,
    change, delete, and act (run the actions that are not edits). A superuser is an admin everywhere. `obj` may be
    a row, an id (as django-unfold passes), or None, which means "in any organization?".
    """

    admin_may: frozenset[str] = EVERYTHING
    dispatcher_may: frozenset[str] = frozenset()
    superuser_may: frozenset[str] | None = None  # None: same as an admin

    def organizations_where(self, request: HttpRequest, permission: str) -> list[int] | None:
        """Return the ids of the organizations in which the user has this permission; None means all."""
        if not isinstance(request.user, User):
            return []  # the sign-in page calls this too
        if request.user.is_superuser:
            return None if permission in (self.superuser_may or self.admin_may) else []
        roles = []
        if permission in self.admin_may:
            roles.append(Membership.Role.ADMIN)
        if permission in self.dispatcher_may:
            roles.append(Membership.Role.DISPATCHER)
        return request.user.organization_ids_as(*roles) if roles else []

    def permitted(self, request: HttpRequest, permission: str, obj: Any = None) -> bool:
        """Return whether the user has this permission on `obj`, or in any organization if `obj` is None."""
        organizations = self.organizations_where(request, permission)
        if obj is None:
            return organizations is None or bool(organizations)
        if not isinstance(obj, models.Model):
            row = self.get_queryset(request).filter(pk=obj).first()  # type: ignore[attr-defined]
            return row is not None and self.permitted(request, permission, row)
        owner = organization_id_of(obj)
        return organizations is None or (bool(organizations) if owner is None else owner in organizations)

    def visible(self, request: HttpRequest, model: type[models.Model]) -> models.QuerySet | None:
        """Return the rows of `model` that the user may see or choose; None if they belong to no organization."""
        organizations = self.organizations_where(request, "view")
        rows = model._default_manager.all()
        if organizations is None:
            return rows
        if issubclass(model, OwnedModel):
            return rows.filter(organization_id__in=organizations)
        if issubclass(model, Organization):
            return rows.filter(pk__in=organizations)
        if issubclass(model, User):
            members = Membership.objects.filter(organization_id__in=organizations, joined_at__isnull=False)
            return rows.filter(pk__in=members.values("user_id"))
        return None

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.permitted(request, "view", obj)

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.permitted(request, "add", obj)

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.permitted(request, "change", obj)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.permitted(request, "delete", obj)

    def has_act_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return self.permitted(request, "act", obj)

    def get_field_queryset(self, db: str | None, db_field: Any, request: HttpRequest) -> models.QuerySet | None:
        """Return the rows that a foreign key or many-to-many field offers and accepts."""
        ordered = super().get_field_queryset(db, db_field, request)  # type: ignore[misc]
        visible = self.visible(request, db_field.remote_field.model)
        if visible is None or ordered is None:
            return visible if ordered is None else ordered
        return visible.order_by(*ordered.query.order_by)


def organization_id_of(row: models.Model) -> int | None:
    """Return the id of the row's organization, or of the row if it is one; None for a row without one (a User)."""
    return row.pk if isinstance(row, Organization) else getattr(row, "organization_id", None)


class OwnedForm(forms.ModelForm):
    """Reject relations between rows of two organizations, and check constraints that include the organization.

    Phone numbers are shown and read as those of the organization's region.
    `one_value`: fields that form one value, such as a position. If one is changed, the page's values of all count.
    `stored_elsewhere`: fields that are no fields of the model, but show a stored value, which is their `initial`.
    """

    one_value: tuple[str, ...] = ()
    stored_elsewhere: tuple[str, ...] = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._is_new = self.instance._state.adding
        if not self._is_new:
            self.compare_with_page()
        phones = [field for field in self.fields.values() if isinstance(field, PhoneNumberField)]
        if phones and (organization := self._organization()):
            for field in phones:
                use_region(field, organization.default_region)

    def compare_with_page(self) -> None:
        """Let the page say which values it shows, and compare what it sends with these.

        A field of which a page does not say it is compared with the row.
        """
        stored = {field.name for field in self._meta.model._meta.get_fields()} | {*self.stored_elsewhere}
        for name, field in self.fields.items():
            field.show_hidden_initial = (
                name in stored
                and _can_say_what_it_showed(field)
                and not (self.is_bound and self.add_initial_prefix(name) not in self.data)
            )
            if issubclass(field.hidden_widget, forms.MultipleHiddenInput):
                field.hidden_widget = ShownChoices

    def _organization(self) -> Organization | None:
        """Return the organization of the row, or the one that is chosen for a new row."""
        owner = organization_id_of(self.instance)
        if owner is None and isinstance(field := self.fields.get("organization"), forms.ModelChoiceField):
            is_chosen = self.is_bound and not field.disabled
            chosen = self["organization"].data if is_chosen else self["organization"].initial
            found = read_id(str(chosen))
            visible: models.QuerySet[Organization] | None = field.queryset
            return visible.filter(pk=found).first() if visible is not None and found is not None else None
        return Organization.objects.filter(pk=owner).first() if owner is not None else None

    def _clean_fields(self) -> None:
        """Take the row's value for each field that the page did not change, but others did since it was shown.

        Otherwise checks and services would use what the page showed.
        """
        super()._clean_fields()  # type: ignore[misc]
        if self._is_new:
            return
        own = {*self.changed_data}
        if not own.isdisjoint(self.one_value):
            own |= {*self.one_value}
        for name in {*self.cleaned_data} - own:
            bound = self[name]
            if bound.field.has_changed(bound.initial, bound.data):
                value = bound.initial if name in self.stored_elsewhere else getattr(self.instance, name)
                self.cleaned_data[name] = value.all() if isinstance(value, models.Manager) else value

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        owner = getattr(cleaned.get("organization"), "pk", None) or organization_id_of(self.instance)
        for name, value in list(cleaned.items()):
            chosen = value if isinstance(value, models.QuerySet) else [value]
            if owner and any(isinstance(row, OwnedModel) and row.organization_id != owner for row in chosen):
                self.add_error(name, gettext("This belongs to another organization."))
        return cleaned

    def save(self, commit: bool = True) -> Any:
        """Save the row; of an existing one, only the columns that the form changed."""
        if self.errors or self._is_new or not commit:
            return super().save(commit)
        self.instance.save(update_fields=changed_columns(self))
        self._save_m2m()
        return self.instance

    def insert_again(self) -> None:
        """Let `save` write the whole row with its key, because it was deleted to make its place free."""
        self._is_new = True

    def _save_m2m(self) -> None:
        """Write the relations that the form changed; all of a new row."""
        cleaned = self.cleaned_data
        names = {*cleaned} if self._is_new else {*self.changed_data}
        self.cleaned_data = {name: value for name, value in cleaned.items() if name in names}
        super()._save_m2m()  # type: ignore[misc]
        self.cleaned_data = cleaned

    def _update_errors(self, errors: ValidationError) -> None:
        """Add what the row's checks found, but not about a field that failed before: the row lacks its value."""
        failed = {*self.errors} - {NON_FIELD_ERRORS}
        if hasattr(errors, "error_dict"):
            found = {name: kept for name, kept in errors.error_dict.items() if name not in failed}
            if not found:
                return
            errors = ValidationError(found)
        super()._update_errors(errors)  # type: ignore[misc]

    def add_error(self, field: str | None, error: Any) -> None:
        """Add an error. That of a field which the page does not show is shown above the form."""
        found = error if isinstance(error, ValidationError) else ValidationError(error)
        if hasattr(found, "error_dict"):
            for name, errors in found.error_dict.items():
                self.add_error(None if name == NON_FIELD_ERRORS else name, errors)
            return
        if field == "organization" and all(problem.code == "unique" for problem in found.error_list):
            words = gettext(
                "{name}: this already exists for the organization. Change it instead of adding another."
            )
            found = ValidationError(words.format(name=capfirst(self._meta.model._meta.verbose_name)))
            field = None
        shown = self.fields.get(field) if field is not None else None
        if isinstance(shown, InlineForeignKeyField):  # "Voice agent with this Campaign already exists."
            field = None
        elif field is not None and (shown is None or shown.widget.is_hidden):
            label = shown.label if shown else self._meta.model._meta.get_field(field).verbose_name
            label = capfirst(label or field)
            if shown is not None:
                super().add_error(field, found)  # which no page shows
            field, found = None, ValidationError([f"{label}: {message}" for message in found.messages])
        super().add_error(field, found)

    def _get_validation_exclusions(self) -> set[str]:
        excluded: set[str] = super()._get_validation_exclusions()  # type: ignore[misc]
        return excluded - {"organization"} if organization_id_of(self.instance) else excluded


def changed_columns(form: Any) -> list[str]:
    """Return the changed columns of the form's model, for `save(update_fields=…)`: the others may be outdated."""
    return [field.name for field in form.instance._meta.concrete_fields if field.name in form.changed_data]


def _can_say_what_it_showed(field: forms.Field) -> bool:
    """Return whether the page may carry the value that the field shows, and can send it back as one value."""
    is_secret = getattr(field.widget, "input_type", "") == "password"
    is_split = isinstance(field.widget, forms.MultiWidget)
    return not (field.disabled or is_secret or is_split or isinstance(field, forms.FileField))


class OwnedChoices:
    """Mixin for filters on relations: offer and accept only the rows that the user may see."""

    def field_choices(self, field: Any, request: HttpRequest, model_admin: Any) -> list[tuple]:
        rows = model_admin.visible(request, field.related_model)
        if rows is None:
            return super().field_choices(field, request, model_admin)  # type: ignore[misc]
        if self._searches:
            return []
        ordering = self.field_admin_ordering(field, request, model_admin)  # type: ignore[attr-defined]
        return [(row.pk, str(row)) for row in (rows.order_by(*ordering) if ordering else rows)]

    def __init__(
        self, field: Any, request: HttpRequest, params: dict, model: Any, model_admin: Any, field_path: str
    ) -> None:
        self._visible = model_admin.visible(request, field.related_model)
        self._searches = hasattr(self, "form_class") and "Autocomplete" in self.form_class.__name__
        super().__init__(field, request, params, model, model_admin, field_path)  # type: ignore[call-arg]

    def value(self) -> Any:
        """Return the selected ids that the user may see. Unfold's filters show the names of these rows."""
        given = super().value()  # type: ignore[misc]
        if not given or self._visible is None:
            return given
        named = given if isinstance(given, list) else [given]
        known = {
            str(pk) for pk in self._visible.filter(pk__in=read_ids(map(str, named))).values_list("pk", flat=True)
        }
        kept = [name for name in named if str(name) in known]
        return kept if isinstance(given, list) else (kept[0] if kept else None)


def owned_filter(model: type[models.Model], item: Any) -> Any:
    """Return an entry of `list_filter` that offers only the rows that the user may see."""
    if isinstance(item, str):
        name, kind = item, None
    elif isinstance(item, tuple | list):
        name, kind = item
    else:
        return item
    field = get_fields_from_path(model, name)[-1]
    if not field.is_relation:
        return item
    kind = kind or admin.RelatedFieldListFilter
    return (
        name,
        kind if issubclass(kind, OwnedChoices) else type(f"Owned{kind.__name__}", (OwnedChoices, kind), {}),
    )
