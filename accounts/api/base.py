"""Isolate tenants in the API: view sets, serializers, related fields and filters limited to one organization."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn

import structlog
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist
from django.core.exceptions import ValidationError as ModelValidationError
from django.db import models, transaction
from django.http import Http404
from django.shortcuts import get_object_or_404
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.mixins import (
    CreateModelMixin,
    DestroyModelMixin,
    ListModelMixin,
    RetrieveModelMixin,
    UpdateModelMixin,
)
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.viewsets import GenericViewSet

from accounts.api.filters import OwnedFilterBackend, OwnedFilterSet
from accounts.models import ApiKey
from accounts.scoping import of_organization
from dispatch.core.api import idempotency
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.ids import ID_PATTERN

log = structlog.get_logger(__name__)

__all__ = [
    "DeletableViewSet",
    "EditableViewSet",
    "OrganizationViewSet",
    "OwnedFilterBackend",
    "OwnedFilterSet",
    "OwnedRelatedField",
    "OwnedSerializer",
    "OwnedSlugRelatedField",
    "OwnedView",
    "respond_idempotently",
]


class OwnedView(GenericAPIView):
    """Base of generic views over the rows of `request.organization`.

    Another organization's id is a 404. A new row belongs to the request's organization.
    """

    def get_queryset(self) -> models.QuerySet:
        queryset = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return queryset.none()
        return of_organization(queryset, self.request.organization)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if getattr(cls, "perform_create", None) is CreateModelMixin.perform_create:
            raise ImproperlyConfigured(f"{cls.__name__}: list this module's base class before CreateModelMixin.")

    def perform_create(self, serializer: serializers.BaseSerializer) -> None:
        serializer.save(organization=self.request.organization)

    def handle_exception(self, exc: Exception) -> Response:
        """Return a 404 if a service misses the row of the request, because it was deleted after `get_object`."""
        if isinstance(exc, ObjectDoesNotExist) and self._is_deleted(exc):
            log.warning("row_deleted_meanwhile", path=self.request.path, error=str(exc))
            exc = Http404()
        return super().handle_exception(exc)

    def _is_deleted(self, error: ObjectDoesNotExist) -> bool:
        """Return whether the error is about the row of the request, which no longer exists."""
        name = self.lookup_url_kwarg or self.lookup_field
        if name not in self.kwargs:
            return False
        rows = self.get_queryset()
        named = {self.lookup_field: self.kwargs[name]}
        return isinstance(error, rows.model.DoesNotExist) and not rows.filter(**named).exists()


class OrganizationViewSet(OwnedView, GenericViewSet):
    """Base of every view set.

    Add DRF's mixins (List, Retrieve, …), and declare the requirement of each action:

        class SkillViewSet(OrganizationViewSet, ListModelMixin, RetrieveModelMixin, CreateModelMixin):
            queryset = Skill.objects.all()
            serializer_class = SkillSerializer            # an OwnedSerializer
            required = {"list": "read", "retrieve": "read", "create": "manage"}

    `request.organization`, `request.actor` (for services) and `request.role` are set. See
    `accounts.auth.permissions` for the possible requirements, and `respond_idempotently` for Idempotency-Key.
    """

    required: dict[str, str | tuple[str, ...]] = {}
    lookup_value_regex = ID_PATTERN


class EditableViewSet(OrganizationViewSet, ListModelMixin, RetrieveModelMixin, CreateModelMixin, UpdateModelMixin):
    """Rows that everybody with the scope `read` reads, and that are added and changed with the scope `manage`."""

    http_method_names = ["get", "post", "patch"]
    required = {
        **dict.fromkeys(["list", "retrieve"], ApiKey.Scope.READ),
        **dict.fromkeys(["create", "partial_update"], ApiKey.Scope.MANAGE),
    }


class DeletableViewSet(EditableViewSet, DestroyModelMixin):
    """Such rows, if they can be deleted, too."""

    http_method_names = [*EditableViewSet.http_method_names, "delete"]
    required = {**EditableViewSet.required, "destroy": ApiKey.Scope.MANAGE}


class OwnedQuerySetMixin(serializers.RelatedField):
    """Find only rows of the request's organization; report any other as missing."""

    def get_queryset(self) -> Any:
        queryset = super().get_queryset()
        if queryset is None:
            return None
        request = self.context.get("request")
        return of_organization(queryset, getattr(request, "organization", None))

    @property
    def what(self) -> str:
        """Return the verbose name of the model."""
        return str(self.get_queryset().model._meta.verbose_name)


class OwnedRelatedField(OwnedQuerySetMixin, serializers.PrimaryKeyRelatedField):
    """Reference a row by its id."""

    default_error_messages = {
        "does_not_exist": "No {what} with the id {pk_value}.",
        "incorrect_type": "Must be a numeric {what} id.",
    }

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        super().fail(key, what=self.what, **kwargs)


_found_rows: ContextVar[dict[Hashable, Any] | None] = ContextVar("found_rows", default=None)


@contextmanager
def each_row_found_once() -> Iterator[None]:
    """Let `OwnedSlugRelatedField` look up each row once in the block, for many bodies that name the same rows."""
    token = _found_rows.set({})
    try:
        yield
    finally:
        _found_rows.reset(token)


class OwnedSlugRelatedField(OwnedQuerySetMixin, serializers.SlugRelatedField):
    """Reference a row by a field that is unique in its organization, such as `code`.

    Errors list the known values.
    """

    default_error_messages = {
        "does_not_exist": "No {what} {value}. {known}",
        "invalid": "Must be the {slug_name} of the {what}, as a string.",
    }
    max_known = 20

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, (bool, list, dict)):
            self.fail("invalid")
        found = _found_rows.get()
        if found is None:
            return super().to_internal_value(data)
        request = self.context.get("request")
        place = self.get_queryset().model, self.slug_field, getattr(request, "organization", None), str(data)
        if place not in found:
            try:
                found[place] = super().to_internal_value(data)
            except serializers.ValidationError as error:
                found[place] = error
        if isinstance(found[place], serializers.ValidationError):
            raise serializers.ValidationError(found[place].detail)
        return found[place]

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        if key == "does_not_exist":
            value = kwargs["value"]
            kwargs["value"] = json.dumps(value if len(value) <= 64 else f"{value[:60]} …", ensure_ascii=False)
            kwargs["known"] = self._known()
        super().fail(key, **{"slug_name": self.slug_field, **kwargs, "what": self.what})

    def _known(self) -> str:
        names = self.get_queryset().order_by(self.slug_field).values_list(self.slug_field, flat=True)
        first = list(names[: self.max_known + 1])
        if not first:
            return "None exists yet."
        if len(first) > self.max_known:
            return f"{names.count()} exist, among them {', '.join(first[: self.max_known])}."
        return f"Choose one of: {', '.join(first)}."


class OwnedSerializer(StrictSerializer, serializers.ModelSerializer):
    """Base of model serializers: relations are OwnedRelatedFields, and constraints include the organization.

    The organization is not a field of the body, so DRF's own checks ignore it. With this class, a duplicate code
    is a 400 instead of a 500.
    """

    serializer_related_field = OwnedRelatedField

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        row: Any = copy.copy(self.instance) if self.instance else self.Meta.model()  # type: ignore[misc]
        many = {field.name for field in row._meta.many_to_many}
        for name, value in attrs.items():
            if name not in many:
                setattr(row, name, value)
        row.organization = self.context["request"].organization
        if problems := self._broken_constraints(row):
            raise serializers.ValidationError(problems)
        return attrs

    def update(self, instance: Any, validated_data: dict[str, Any]) -> Any:
        """Save only the given fields: others may have changed since the row was read.

        The result has the current values of all fields, and no cached rows. Raises Http404 if the row was deleted
        meanwhile.
        """
        many = {field.name for field in instance._meta.many_to_many}
        with transaction.atomic():
            rows = type(instance)._default_manager.select_for_update(no_key=True)
            get_object_or_404(rows.only("pk"), pk=instance.pk)
            for name, value in validated_data.items():
                if name not in many:
                    setattr(instance, name, value)
            instance.save(update_fields=[name for name in validated_data if name not in many])
            for name in many & validated_data.keys():
                getattr(instance, name).set(validated_data[name])
        instance.refresh_from_db()
        return instance

    def _broken_constraints(self, row: Any) -> dict[str, list[str]]:
        """Return the messages of violated constraints by field, or by the non-field key if they span several."""
        messages: dict[str, list[str]] = {}
        for model, constraints in row.get_constraints():
            for constraint in constraints:
                try:
                    constraint.validate(model, row)
                except ModelValidationError as error:
                    own = [name for name in getattr(constraint, "fields", ()) if name != "organization"]
                    is_one_field = len(own) == 1 and own[0] in self.fields
                    name = own[0] if is_one_field else api_settings.NON_FIELD_ERRORS_KEY
                    messages.setdefault(name, []).extend(error.messages)
        return messages


def respond_idempotently(request: Request, endpoint: str, make: Callable[[], tuple[int, dict]]) -> Response:
    """Respond with (status, body) of `make()`, or with the first response to the request's Idempotency-Key.

    `make` validates the body, too: a repeated request gets its first response, even if it would no longer be valid
    because time has passed or what it names has changed. Refusals are not stored. See
    `core.api.idempotency.run_once`.
    """
    key = request.headers.get(idempotency.HEADER, "")
    status, body, replayed = idempotency.run_once(request.organization.pk, endpoint, key, request.data, make)
    return Response(body, status=status, headers={"Idempotency-Replayed": "true"} if replayed else None)
