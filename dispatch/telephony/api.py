"""Serve the API of the daily spending cap: the scope `read` sees it, and `manage` changes it."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.models import ApiKey
from dispatch.core.api.problems import Conflict
from dispatch.core.api.serializers import StrictSerializer
from dispatch.telephony.models import SpendCap
from dispatch.telephony.services import spend_caps


class SpendCapSerializer(StrictSerializer, serializers.ModelSerializer):
    """What the organization's calls and texts may cost in one of its local days; `amount` null: no cap.

    `spent` is the cost of the day `day` in the cap's `currency`, with an estimate where no price is known. What
    was billed in other currencies counts by the exchange rates that admins enter; what has no rate is in
    `not_counted`, and the cap does not stop it.
    `is_stopped`: calls and texts wait, because the cap is reached.
    """

    spent = serializers.DecimalField(source="settled", max_digits=18, decimal_places=6, read_only=True)
    not_counted = serializers.SerializerMethodField(help_text="Amounts with their currency, such as 0.70 EUR.")
    is_stopped = serializers.SerializerMethodField()

    class Meta:
        model = SpendCap
        fields = ["amount", "currency", "warn_percent", "day", "spent", "not_counted", "is_stopped"]
        read_only_fields = ["day"]

    def get_not_counted(self, cap: SpendCap) -> list[str]:
        return [part.strip() for part in cap.other_currencies.split(",") if part.strip()]

    def get_is_stopped(self, cap: SpendCap) -> bool:
        return cap.stopped_at is not None


class SpendCapView(APIView):
    """The organization's daily spending cap."""

    required = {"get": ApiKey.Scope.READ, "patch": ApiKey.Scope.MANAGE}

    @extend_schema(responses=SpendCapSerializer)
    def get(self, request: Request) -> Response:
        return Response(SpendCapSerializer(_cap_of(request)).data)

    @extend_schema(request=SpendCapSerializer(partial=True), responses=SpendCapSerializer)
    def patch(self, request: Request) -> Response:
        """Change the cap. A raised or removed cap lets calls and texts continue at once."""
        try:
            with transaction.atomic():
                self._change(request)
        except IntegrityError:  # another request added it
            raise Conflict("The cap has just been added. Read it again.") from None
        return Response(SpendCapSerializer(_cap_of(request)).data)

    def _change(self, request: Request) -> None:
        """Validate the body and save what it changes, under the cap's lock."""
        cap = _cap_of(request, SpendCap.objects.select_for_update(no_key=True))
        given = SpendCapSerializer(cap, data=request.data, partial=True)
        given.is_valid(raise_exception=True)
        changed: dict[str, Any] = {
            name: value for name, value in given.validated_data.items() if getattr(cap, name) != value
        }
        for name, value in changed.items():
            setattr(cap, name, value)
        if changed:
            spend_caps.save_cap(cap, changed, actor=request.actor)


def _cap_of(request: Request, caps: Any = SpendCap.objects) -> SpendCap:
    """Return the organization's cap, or an unsaved one without an amount."""
    cap: SpendCap | None = caps.filter(organization=request.organization).first()
    return cap or SpendCap(organization=request.organization)


urlpatterns = [path("spend-cap/", SpendCapView.as_view(), name="spend-cap")]
