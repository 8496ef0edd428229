"""Edit owned rows under their parent. Others may have changed, added or removed rows since the page was shown."""

from __future__ import annotations

from copy import copy
from typing import Any

from django import forms
from django.db import models
from django.http import HttpRequest
from django.utils.translation import gettext
from unfold.admin import StackedInline, TabularInline
from unfold.forms import PaginationInlineFormSet
from unfold.overrides import FORMFIELD_OVERRIDES_INLINE

from accounts.admin import widgets
from accounts.admin.tenant_scope import OwnedForm, RoleRules, organization_id_of
from accounts.scoping import OwnedModel
from dispatch.core.ids import read_id


class _RemovedRow:
    """The row that the page shows in place of one that another person has removed."""

    def __str__(self) -> str:
        return gettext("Removed by someone else")


class _RemovedKey(forms.Field):
    """The key of a row that no longer exists. It is sent back, and is no change."""

    widget = forms.HiddenInput

    def has_changed(self, initial: Any, data: Any) -> bool:
        return False


class OwnedInlineFormSet(PaginationInlineFormSet):
    """Validate inline rows as rows of their parent's organization.

    A row that another person has removed stays removed. It is an error if the page changed the row.
    """

    def get_page_num(self) -> int:
        """Return the page number that the request names, or 1 if it is not valid."""
        key = self.get_pagination_key()
        return read_id(self.request.GET.get(key) or self.request.POST.get(key, "")) or 1

    def get_queryset(self) -> Any:
        """Return the rows. Once a sent page has its forms, return the row of each, in their order.

        Django pairs the forms with these rows, and the rows in the database may no longer be those of the page.
        """
        if not self.is_bound or "forms" not in self.__dict__:
            return super().get_queryset()
        return [form.shown_row for form in self.initial_forms]

    def _construct_form(self, i: int, **kwargs: Any) -> Any:
        form = super()._construct_form(i, **kwargs)
        # A copy: validation changes the form's row.
        form.shown_row = _RemovedRow() if form.instance._state.adding else copy(form.instance)
        key = self.model._meta.pk.name
        is_sent = self.is_bound and i < self.initial_form_count() and form.data.get(form.add_prefix(key))
        if is_sent and form.instance._state.adding:
            form.fields[key] = _RemovedKey(required=False)
            form.empty_permitted = True
            form.compare_with_page()
        return form

    def _is_removed(self, form: Any) -> bool:
        """Return whether the form shows a row that no longer exists."""
        return isinstance(form.fields.get(self.model._meta.pk.name), _RemovedKey)

    @property
    def deleted_forms(self) -> list[Any]:
        """Return the forms of rows that will not exist, also of those that others have removed.

        Their values, such as a position, are free for other rows.
        """
        chosen: list[Any] = super().deleted_forms
        return [form for form in self.forms if form in chosen or self._is_removed(form)]

    def full_clean(self) -> None:
        # Not earlier: a new parent has no organization until its own form is validated.
        for form in self.forms:
            if isinstance(form.instance, OwnedModel) and form.instance.organization_id is None:
                form.instance.organization_id = organization_id_of(self.instance)
        super().full_clean()
        if not self.is_bound:
            return
        kept = [form for form in self.forms if not (self.can_delete and self._should_delete_form(form))]
        for form in kept:
            if self._is_removed(form) and form.has_changed():
                form.add_error(
                    None,
                    gettext(
                        "Someone else has removed this since you opened the page. Remove it here as well. To keep "
                        "your changes, add them as a new entry."
                    ),
                )
        self._check_unshown_rows(kept)
        self._check_number(kept)

    def _check_unshown_rows(self, kept: list[Any]) -> None:
        """Refuse a row that a constraint does not allow beside one which the page did not show.

        Django compares the rows of a page only with each other.
        """
        names = self._unique_names()
        if not names:
            return
        shown = {form.instance.pk for form in self.initial_forms}
        taken = {_values(row, names): row for row in super().get_queryset() if row.pk not in shown}
        for form in kept:
            if form.has_changed() and not form.errors and (row := taken.get(_values(form.instance, names))):
                words = gettext(
                    "Someone else has added the same since you opened the page: {row}. Choose another, or open "
                    "the page again to change it."
                )
                form.add_error(None, words.format(row=row))

    def _check_number(self, kept: list[Any]) -> None:
        """Refuse to add rows beyond `max_num`, together with those which the page did not show.

        A browser only hides the button at that number. Errors of the forms come first: one may name such a row.
        """
        added = [form for form in self.extra_forms if form in kept and form.has_changed()]
        if not added or any(form.errors for form in kept):
            return
        shown = {form.instance.pk for form in self.initial_forms}
        unshown = sum(row.pk not in shown for row in super().get_queryset())
        stored = [form for form in self.initial_forms if form in kept and not self._is_removed(form)]
        if unshown + len(stored) + len(added) > self.max_num:
            words = gettext(
                "At most {count} entries. Remove some, and open the page again if someone else has added some."
            )
            self._non_form_errors.append(words.format(count=self.max_num))

    def _unique_names(self) -> list[str]:
        """Return the fields that are unique among the rows of a parent, such as the position."""
        for constraint in self.model._meta.constraints:
            if isinstance(constraint, models.UniqueConstraint) and self.fk.name in constraint.fields:
                return [name for name in constraint.fields if name != self.fk.name]
        return []

    def save_existing_objects(self, commit: bool = True) -> list[Any]:
        """Remove rows first, because others may take their place. Rows may also exchange their places."""
        stored = [form for form in self.initial_forms if not form.instance._state.adding]
        removed = [form.instance for form in stored if form in self.deleted_forms]
        for row in removed:
            self.delete_existing(row, commit=commit)
        names = self._unique_names()
        moved = [form for form in stored if form.instance not in removed and {*names} & {*form.changed_data}]
        is_free = not self.model._meta.related_objects  # else what refers to the rows would be deleted, too
        if len(moved) > 1 and is_free:
            count, _ = self.model._base_manager.filter(pk__in=[form.instance.pk for form in moved]).delete()
            if count < len(moved):
                raise self.model.DoesNotExist  # removed meanwhile: they would come back
            for form in moved:
                form.insert_again()
        saved: list[Any] = super().save_existing_objects(commit)
        self.deleted_objects = removed
        return saved


def _values(row: Any, names: list[str]) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in names)


class _OwnedInline(RoleRules):
    form = OwnedForm
    formset = OwnedInlineFormSet
    exclude: tuple[str, ...] = ("organization",)
    extra = 0
    formfield_overrides = FORMFIELD_OVERRIDES_INLINE | widgets.OVERRIDES

    def get_queryset(self, request: HttpRequest) -> models.QuerySet:
        rows = super().get_queryset(request)  # type: ignore[misc]
        organizations = self.organizations_where(request, "view")
        return rows if organizations is None else rows.filter(organization_id__in=organizations)


class OwnedTabularInline(_OwnedInline, TabularInline):
    """Edit owned rows under their parent, as a table."""


class OwnedStackedInline(_OwnedInline, StackedInline):
    """Edit owned rows under their parent, as blocks."""
