"""Define API filters that are limited to one organization."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import django_filters
from django import forms
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django_filters.rest_framework import DjangoFilterBackend, FilterSet
from rest_framework.exceptions import ValidationError

from accounts.scoping import of_organization
from dispatch.core.phone_numbers import InvalidPhone, parse_possible_phone


class _BooleanField(forms.NullBooleanField):
    """Accept true, false, 1 and 0. Anything else is an error, where Django's fields take it as no value."""

    widget = forms.TextInput
    values: Mapping[str, bool] = {"true": True, "1": True, "false": False, "0": False}

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return None
        if (found := self.values.get(str(value).strip().lower())) is None:
            raise forms.ValidationError("Must be true or false.", code="invalid")
        return found


class BooleanFilter(django_filters.BooleanFilter):
    """Filter by true or false; any other value is a 400. `OwnedFilterSet` uses it for boolean columns, too."""

    field_class = _BooleanField


class OwnedFilterSet(FilterSet):
    """Reject another organization's id, an impossible date-time and a value that is no boolean (400)."""

    FILTER_DEFAULTS = {**FilterSet.FILTER_DEFAULTS, models.BooleanField: {"filter_class": BooleanFilter}}

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for item in self.filters.values():
            if isinstance(item, django_filters.ModelChoiceFilter | django_filters.ModelMultipleChoiceFilter):
                item.queryset = self._narrowed(item.queryset)

    def filter_queryset(self, queryset: models.QuerySet) -> models.QuerySet:
        cleaned = self.form.cleaned_data
        for name, value in cleaned.items():
            if isinstance(value, datetime):
                try:
                    cleaned[name] = value.astimezone(UTC)  # PostgreSQL rejects offsets beyond 16 hours
                except OverflowError:
                    raise ValidationError({name: ["Not a valid date-time."]}) from None
        return super().filter_queryset(queryset)

    def _narrowed(self, queryset: Any) -> Callable[[Any], models.QuerySet]:
        def narrowed(request: Any) -> models.QuerySet:
            rows = queryset(request) if callable(queryset) else queryset
            return of_organization(rows.all(), getattr(request, "organization", None))

        return narrowed


class PhoneFilter(django_filters.CharFilter):
    """Match one phone number, written in E.164 or as dialed in the organization's country."""

    def filter(self, queryset: models.QuerySet, value: str) -> models.QuerySet:
        if not value:
            return queryset
        organization = getattr(self.parent.request, "organization", None)
        try:
            number = parse_possible_phone(value, getattr(organization, "default_region", ""))
        except InvalidPhone as error:
            raise ValidationError({self.field_name: [str(error)]}) from None
        return super().filter(queryset, number.as_e164)


class OwnedFilterBackend(DjangoFilterBackend):
    """Build an OwnedFilterSet from `filterset_fields`. The default filter backend."""

    filterset_base = OwnedFilterSet

    def get_filterset_class(self, view: Any, queryset: Any = None) -> Any:
        filterset = super().get_filterset_class(view, queryset)
        if filterset is not None and not issubclass(filterset, OwnedFilterSet):
            raise ImproperlyConfigured(f"{filterset.__name__} must derive from OwnedFilterSet.")
        return filterset
