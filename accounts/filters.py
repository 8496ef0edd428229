"""Filters of the API that know only one organization."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import django_filters
from django.core.exceptions import ImproperlyConfigured
from django.db import models
from django_filters.rest_framework import DjangoFilterBackend, FilterSet
from rest_framework.exceptions import ValidationError

from accounts.scoping import of_organization


class OwnedFilterSet(FilterSet):
    """A FilterSet in which a foreign id is not a valid choice (400), nor a moment that no calendar has."""

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
                    cleaned[name] = value.astimezone(UTC)  # PostgreSQL takes no offset beyond 16 hours
                except OverflowError:
                    raise ValidationError({name: ["There is no such moment."]}) from None
        return super().filter_queryset(queryset)

    def _narrowed(self, queryset: Any) -> Callable[[Any], models.QuerySet]:
        def narrowed(request: Any) -> models.QuerySet:
            found = queryset(request) if callable(queryset) else queryset
            return of_organization(found.all(), getattr(request, "organization", None))

        return narrowed


class OwnedFilterBackend(DjangoFilterBackend):
    """The default backend: `filterset_fields` become an OwnedFilterSet."""

    filterset_base = OwnedFilterSet

    def get_filterset_class(self, view: Any, queryset: Any = None) -> Any:
        found = super().get_filterset_class(view, queryset)
        if found is not None and not issubclass(found, OwnedFilterSet):
            raise ImproperlyConfigured(f"{found.__name__} must derive from OwnedFilterSet.")
        return found
