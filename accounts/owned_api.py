"""Tenants apart in the API: view sets, serializers, related fields and filters that know only one organization."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any, NoReturn

from django.core.exceptions import ImproperlyConfigured
from django.core.exceptions import ValidationError as ModelValidationError
from django.db import models
from rest_framework import serializers
from rest_framework.generics import GenericAPIView
from rest_framework.mixins import CreateModelMixin
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.settings import api_settings
from rest_framework.viewsets import GenericViewSet

from accounts.filters import OwnedFilterBackend, OwnedFilterSet
from accounts.scoping import of_organization
from dispatch.core import idempotency
from dispatch.core.ids import ADDRESSED
from dispatch.core.strict import Strict

__all__ = [
    "OrganizationViewSet",
    "OwnedFilterBackend",
    "OwnedFilterSet",
    "OwnedRelatedField",
    "OwnedSerializer",
    "OwnedSlugRelatedField",
    "OwnedView",
    "OwnedViewSet",
    "answer_once",
]


class OwnedView(GenericAPIView):
    """Any generic view over the rows of `request.organization`: a foreign id is a 404, a new row is its own."""

    def get_queryset(self) -> models.QuerySet:
        queryset = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return queryset.none()
        return of_organization(queryset, self.request.organization)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if getattr(cls, "perform_create", None) is CreateModelMixin.perform_create:
            raise ImproperlyConfigured(f"{cls.__name__}: its base here comes first, before CreateModelMixin.")

    def perform_create(self, serializer: serializers.BaseSerializer) -> None:
        serializer.save(organization=self.request.organization)


class OrganizationViewSet(OwnedView, GenericViewSet):
    """The base of every view set; mix in DRF's List-, Retrieve-… mixins and say what each action requires:

        class SkillViewSet(OrganizationViewSet, ListModelMixin, RetrieveModelMixin, CreateModelMixin):
            queryset = Skill.objects.all()
            serializer_class = SkillSerializer            # an OwnedSerializer
            required = {"list": "read", "retrieve": "read", "create": "manage"}

    `request.organization`, `request.actor` (for services) and `request.role` are set. See `accounts.permissions`
    for what can be required, and `accounts.api.answer_once` for Idempotency-Key."""

    required: dict[str, str | tuple[str, ...]] = {}
    lookup_value_regex = ADDRESSED


OwnedViewSet = OrganizationViewSet


class _Owned(serializers.RelatedField):
    """Finds only rows of the request's organization; any other is said not to exist."""

    def get_queryset(self) -> Any:
        queryset = super().get_queryset()
        if queryset is None:
            return None
        request = self.context.get("request")
        return of_organization(queryset, getattr(request, "organization", None))

    @property
    def what(self) -> str:
        """What the rows are called."""
        return str(self.get_queryset().model._meta.verbose_name)


class OwnedRelatedField(_Owned, serializers.PrimaryKeyRelatedField):
    """A row named by its id."""

    default_error_messages = {
        "does_not_exist": "There is no {what} with the id {pk_value} here.",
        "incorrect_type": "Give the id of the {what}, a number.",
    }

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        super().fail(key, what=self.what, **kwargs)


class OwnedSlugRelatedField(_Owned, serializers.SlugRelatedField):
    """A row named by a field that is unique in its organization, such as `code`. Who names another is told which
    there are."""

    default_error_messages = {
        "does_not_exist": "There is no {what} {value} here. {known}",
        "invalid": "Give the {slug_name} of the {what}, a text.",
    }
    told = 20

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, (bool, list, dict)):
            self.fail("invalid")
        return super().to_internal_value(data)

    def fail(self, key: str, **kwargs: Any) -> NoReturn:
        if key == "does_not_exist":
            value = kwargs["value"]
            kwargs["value"] = json.dumps(value if len(value) <= 64 else f"{value[:60]} …", ensure_ascii=False)
            kwargs["known"] = self._known()
        super().fail(key, **{"slug_name": self.slug_field, **kwargs, "what": self.what})

    def _known(self) -> str:
        names = self.get_queryset().order_by(self.slug_field).values_list(self.slug_field, flat=True)
        first = list(names[: self.told + 1])
        if not first:
            return "There is none yet."
        if len(first) > self.told:
            return f"There are {names.count()}, among them {', '.join(first[: self.told])}."
        return f"Give one of these: {', '.join(first)}."


class OwnedSerializer(Strict, serializers.ModelSerializer):
    """A ModelSerializer whose relations are OwnedRelatedFields, and which checks the model's constraints together
    with the organization, which is no field of the body (a code that is taken is a 400, not a 500)."""

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

    def _broken_constraints(self, row: Any) -> dict[str, list[str]]:
        """What the row would violate, by the field that is to blame, where it is one."""
        found: dict[str, list[str]] = {}
        for model, constraints in row.get_constraints():
            for constraint in constraints:
                try:
                    constraint.validate(model, row)
                except ModelValidationError as error:
                    own = [name for name in getattr(constraint, "fields", ()) if name != "organization"]
                    is_one = len(own) == 1 and own[0] in self.fields
                    name = own[0] if is_one else api_settings.NON_FIELD_ERRORS_KEY
                    found.setdefault(name, []).extend(error.messages)
        return found


def answer_once(request: Request, endpoint: str, make: Callable[[], tuple[int, dict]]) -> Response:
    """Answers with `make()`'s (status, body), or with the first answer to the request's Idempotency-Key.

    Validate before, so that only valid requests are remembered. See `core.idempotency.remember`."""
    key = request.headers.get(idempotency.HEADER, "")
    status, body, replayed = idempotency.remember(request.organization.pk, endpoint, key, request.data, make)
    return Response(body, status=status, headers={"Idempotency-Replayed": "true"} if replayed else None)
