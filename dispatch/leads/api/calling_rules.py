"""Serve the API of an organization's calling rules: do-not-call list, consents, closed days and customer rates."""

from __future__ import annotations

from django.db import transaction
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import BaseSerializer

from accounts.api.base import OrganizationViewSet, OwnedFilterSet
from accounts.api.filters import BooleanFilter, PhoneFilter
from accounts.models import ApiKey
from dispatch.core.api.problems import Conflict
from dispatch.leads.api.calling_rule_serializers import (
    ClosedDaySerializer,
    ConsentSerializer,
    CustomerRateSerializer,
    DoNotCallSerializer,
)
from dispatch.leads.models import ClosedDay, Consent, CustomerRate, DoNotCall
from dispatch.leads.services import consents, do_not_call
from dispatch.leads.services.consents import NewConsent

_READ, _WRITE, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.LEADS, ApiKey.Scope.MANAGE


class _Rows(
    OrganizationViewSet,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.DestroyModelMixin,
):
    http_method_names = ["get", "post", "delete"]
    required = {"list": _READ, "retrieve": _READ, "create": _MANAGE, "destroy": _MANAGE}


class DoNotCallFilter(OwnedFilterSet):
    """Filter the do-not-call list: `?phone=%2B16025550134&source=key`."""

    phone = PhoneFilter()

    class Meta:
        model = DoNotCall
        fields = ["source"]


class DoNotCallViewSet(_Rows):
    """Phones that no campaign of the organization calls, effective as soon as they are added."""

    queryset = DoNotCall.objects.order_by("-id")
    serializer_class = DoNotCallSerializer
    filterset_class = DoNotCallFilter
    required = {"list": _READ, "retrieve": _READ, "create": _WRITE, "destroy": _MANAGE}

    def perform_create(self, serializer: BaseSerializer) -> None:
        request, data = self.request, serializer.validated_data
        organization_id, phone = request.organization.pk, str(data["phone"])
        do_not_call.add_to_list(
            organization_id, phone, source=DoNotCall.Source.API, actor=request.actor, note=data.get("note", "")
        )
        serializer.instance = self.get_queryset().get(phone=phone)

    def perform_destroy(self, instance: DoNotCall) -> None:
        """Remove the phone, so that it may be called again; the event log records who did it."""
        do_not_call.remove_from_list(instance, actor=self.request.actor)


class ConsentFilter(OwnedFilterSet):
    """Filter consents: `?phone=%2B16025550134&purpose=marketing&is_withdrawn=false`."""

    phone = PhoneFilter()
    is_withdrawn = BooleanFilter(field_name="withdrawn_at", lookup_expr="isnull", exclude=True)

    class Meta:
        model = Consent
        fields = ["purpose"]


class ConsentViewSet(
    OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin
):
    """Records of consent to be called. They are withdrawn, never changed or deleted."""

    queryset = Consent.objects.order_by("-id")
    serializer_class = ConsentSerializer
    filterset_class = ConsentFilter
    http_method_names = ["get", "post"]
    required = {"list": _READ, "retrieve": _READ, "create": _WRITE, "withdraw": _WRITE}

    def perform_create(self, serializer: BaseSerializer) -> None:
        """Record the consent. A phone with a valid consent for the purpose keeps that one, which is returned.

        409: the phone is on the do-not-call list, or withdrew a consent later than this one was given.
        """
        request, data = self.request, dict(serializer.validated_data)
        phone = str(data.pop("phone"))
        with transaction.atomic():
            consents.record_consents(request.organization.pk, [(phone, NewConsent(**data))], actor=request.actor)
        valid = self.get_queryset().filter(
            phone=phone, purpose=data.get("purpose", consents.DEFAULT_PURPOSE), withdrawn_at=None
        )
        serializer.instance = valid.first()
        if serializer.instance is None:
            raise Conflict(consents.NOT_RECORDED)

    @extend_schema(request=None, responses=ConsentSerializer)
    @action(detail=True, methods=["post"])
    def withdraw(self, request: Request, pk: str) -> Response:
        """Withdraw the phone's consent for this purpose. Calls that ring are hung up."""
        row = self.get_object()
        if row.withdrawn_at is None:
            consents.withdraw(
                row.organization_id, str(row.phone), by="api", actor=request.actor, purpose=row.purpose
            )
        return Response(self.get_serializer(self.get_object()).data)


class ClosedDayViewSet(_Rows):
    """Days on which campaigns that observe holidays make no calls."""

    queryset = ClosedDay.objects.order_by("-id")
    serializer_class = ClosedDaySerializer


class CustomerRateViewSet(_Rows):
    """The maximum number of calls on a customer's behalf in any period of the given seconds."""

    queryset = CustomerRate.objects.order_by("-id")
    serializer_class = CustomerRateSerializer


router = SimpleRouter()
router.register("do-not-call", DoNotCallViewSet, basename="do-not-call")
router.register("consents", ConsentViewSet, basename="consent")
router.register("closed-days", ClosedDayViewSet, basename="closed-day")
router.register("customer-rates", CustomerRateViewSet, basename="customer-rate")
urlpatterns = router.urls
