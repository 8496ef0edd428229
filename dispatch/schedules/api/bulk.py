"""Serve the API of bulk imports."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from django.urls import reverse
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet, respond_idempotently
from accounts.auth.permissions import is_allowed
from accounts.models import ApiKey
from dispatch.core.api.openapi import IDEMPOTENCY_KEY
from dispatch.core.api.parsers import LargeJSONParser
from dispatch.schedules.api.bulk_serializers import BulkDetailSerializer, BulkFormSerializer, BulkSerializer
from dispatch.schedules.models import BulkImport
from dispatch.schedules.services import bulk_import

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.SCHEDULES


class ImportParser(LargeJSONParser):
    """Parse JSON bodies of up to 64 MiB."""

    limit = 64 * 2**20


class BulkViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Bulk imports of schedules, and their progress."""

    queryset: QuerySet = BulkImport.objects.order_by("-id")
    filterset_fields = ["status"]
    parser_classes = (ImportParser,)
    required = {"list": _READ, "retrieve": _READ, "create": _WRITE, "cancel": _WRITE}

    def get_serializer_class(self) -> Any:
        return BulkSerializer if self.action == "list" else BulkDetailSerializer

    @extend_schema(request=BulkFormSerializer, responses={202: BulkSerializer}, parameters=[IDEMPOTENCY_KEY])
    def create(self, request: Request) -> Response:
        """Accept up to 100,000 schedules (64 MiB) for a worker to validate and create.

        Poll `Location` for progress. A rejected row does not affect the others.
        """
        form = BulkFormSerializer(data=request.data)

        def make() -> tuple[int, dict]:
            form.is_valid(raise_exception=True)
            made = bulk_import.accept_import(
                request.organization,
                form.validated_data["defaults"],
                form.validated_data["schedules"],
                actor=request.actor,
                scopes=[scope for scope in ApiKey.Scope.values if is_allowed(request, scope)],
            )
            return 202, BulkSerializer(made).data

        answer = respond_idempotently(request, "schedule-imports", make)
        answer["Location"] = settings.PUBLIC_BASE_URL + reverse("schedule-import-detail", args=[answer.data["id"]])
        return answer

    @extend_schema(request=None, responses=BulkDetailSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel the import. Schedules created so far are kept."""
        bulk_import.cancel_import(self.get_object().pk, actor=request.actor)
        return Response(self.get_serializer(self.get_object()).data)
