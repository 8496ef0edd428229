"""The API of bulk creations."""

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

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, answer_once
from accounts.permissions import may
from dispatch.core.parsers import LargeJSONParser
from dispatch.schedules.api.schedules import IDEMPOTENCY
from dispatch.schedules.models import BulkImport
from dispatch.schedules.serializers import BulkDetailSerializer, BulkFormSerializer, BulkSerializer
from dispatch.schedules.services import bulk

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.SCHEDULES


class ImportParser(LargeJSONParser):
    limit = 64 * 2**20


class BulkViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Many schedules created at once, and how far that has come."""

    queryset: QuerySet = BulkImport.objects.order_by("-id")
    filterset_fields = ["status"]
    parser_classes = (ImportParser,)
    required = {"list": _READ, "retrieve": _READ, "create": _WRITE, "cancel": _WRITE}

    def get_serializer_class(self) -> Any:
        return BulkSerializer if self.action == "list" else BulkDetailSerializer

    @extend_schema(request=BulkFormSerializer, responses={202: BulkSerializer}, parameters=[IDEMPOTENCY])
    def create(self, request: Request) -> Response:
        """Takes up to 100,000 schedules (64 MiB), which a worker checks and creates; look at `Location` for how
        far it has come. A row that is refused stops no other."""
        form = BulkFormSerializer(data=request.data)
        form.is_valid(raise_exception=True)

        def make() -> tuple[int, dict]:
            made = bulk.accept(
                request.organization,
                form.validated_data["defaults"],
                form.validated_data["schedules"],
                actor=request.actor,
                scopes=[scope for scope in ApiKey.Scope.values if may(request, scope)],
            )
            return 202, BulkSerializer(made).data

        answer = answer_once(request, "schedule-imports", make)
        answer["Location"] = settings.PUBLIC_BASE_URL + reverse("schedule-import-detail", args=[answer.data["id"]])
        return answer

    @extend_schema(request=None, responses=BulkDetailSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Creates no more; what was created stays."""
        bulk.cancel(self.get_object().pk, actor=request.actor)
        return Response(self.get_serializer(self.get_object()).data)
