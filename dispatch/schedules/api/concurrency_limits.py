"""Serve the API of concurrency limits."""

from __future__ import annotations

from typing import Any, cast

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet
from accounts.models import ApiKey
from dispatch.core.api.serializers import StrictSerializer
from dispatch.schedules.models import MAX_CONCURRENT_RUNS, ConcurrencyLimit
from dispatch.schedules.services import concurrency_limits
from dispatch.schedules.services.admission import LimitUse, read_use

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE


class ConcurrencyLimitListSerializer(serializers.ListSerializer):
    """Read the use of all limits of a page at once."""

    def to_representation(self, data: Any) -> Any:
        rows, child = list(data), cast(Any, self.child)
        child.use = read_use(row.pk for row in rows)
        return super().to_representation(rows)


class ConcurrencyLimitSerializer(serializers.ModelSerializer):
    """A limit, with the number of its runs that are in progress and of those that wait."""

    running = serializers.SerializerMethodField()
    waiting = serializers.SerializerMethodField()

    class Meta:
        model = ConcurrencyLimit
        list_serializer_class = ConcurrencyLimitListSerializer
        fields = ["id", "key", "max_runs", "running", "waiting", "created_at"]
        read_only_fields = fields

    use: dict[int, LimitUse] | None = None

    def get_running(self, row: ConcurrencyLimit) -> int:
        return self._use_of(row).running

    def get_waiting(self, row: ConcurrencyLimit) -> int:
        return self._use_of(row).waiting

    def _use_of(self, row: ConcurrencyLimit) -> LimitUse:
        if self.use is None or row.pk not in self.use:
            self.use = read_use([row.pk])
        return self.use.get(row.pk) or LimitUse(row.key, row.max_runs, 0, 0)


class MaxRunsSerializer(StrictSerializer):
    """How many runs with the key may be in progress at once."""

    max_runs = serializers.IntegerField(min_value=1, max_value=MAX_CONCURRENT_RUNS)


class ConcurrencyLimitFormSerializer(MaxRunsSerializer):
    """A new limit: its key, and how many runs with it may be in progress at once."""

    key = serializers.CharField(max_length=80)


class ConcurrencyLimitViewSet(
    OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.DestroyModelMixin
):
    """Limits of how many runs of schedules with the same key are in progress at once."""

    queryset: QuerySet = ConcurrencyLimit.objects.order_by("-id")
    serializer_class = ConcurrencyLimitSerializer
    required = {
        "list": _READ,
        "retrieve": _READ,
        **dict.fromkeys(["create", "partial_update", "destroy"], _MANAGE),
    }

    @extend_schema(request=ConcurrencyLimitFormSerializer, responses={201: ConcurrencyLimitSerializer})
    def create(self, request: Request) -> Response:
        """Create a limit. A key that exists returns 409 `duplicate`."""
        form = ConcurrencyLimitFormSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        made = concurrency_limits.create_limit(request.organization.pk, **form.validated_data, actor=request.actor)
        return Response(ConcurrencyLimitSerializer(made).data, status=status.HTTP_201_CREATED)

    @extend_schema(request=MaxRunsSerializer, responses=ConcurrencyLimitSerializer)
    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        """Change how many runs may be in progress at once. Waiting runs begin at once if there are more slots."""
        limit = self.get_object()
        form = MaxRunsSerializer(data=request.data)
        form.is_valid(raise_exception=True)
        changed = concurrency_limits.change_limit(limit.pk, **form.validated_data, actor=request.actor)
        return Response(ConcurrencyLimitSerializer(changed).data)

    def perform_destroy(self, limit: ConcurrencyLimit) -> None:
        concurrency_limits.delete_limit(limit.pk, actor=self.request.actor)
