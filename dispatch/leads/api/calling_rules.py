"""Serve the API of an organization's calling rules: do-not-call list, closed days and customer rates."""

from __future__ import annotations

from rest_framework import mixins
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import BaseSerializer

from accounts.api.base import OrganizationViewSet, OwnedFilterSet
from accounts.api.filters import PhoneFilter
from accounts.models import ApiKey
from dispatch.leads.api.serializers import ClosedDaySerializer, CustomerRateSerializer, DoNotCallSerializer
from dispatch.leads.models import ClosedDay, CustomerRate, DoNotCall
from dispatch.leads.services import do_not_call

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
router.register("closed-days", ClosedDayViewSet, basename="closed-day")
router.register("customer-rates", CustomerRateViewSet, basename="customer-rate")
urlpatterns = router.urls
