"""The API of an organization's own rulebook: whom it does not call, its closed days, its customers' rates."""

from __future__ import annotations

from rest_framework import mixins
from rest_framework.routers import SimpleRouter
from rest_framework.serializers import BaseSerializer

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, OwnedFilterSet
from dispatch.leads.models import ClosedDay, CustomerRate, DoNotCall
from dispatch.leads.serializers import ClosedDaySerializer, CustomerRateSerializer, DoNotCallSerializer
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
    """`?phone=%2B16025550134&source=key`"""

    class Meta:
        model = DoNotCall
        fields = ["phone", "source"]


class DoNotCallViewSet(_Rows):
    """Phones that no campaign of the organization calls, from the moment they are added."""

    queryset = DoNotCall.objects.order_by("-id")
    serializer_class = DoNotCallSerializer
    filterset_class = DoNotCallFilter
    required = {"list": _READ, "retrieve": _READ, "create": _WRITE, "destroy": _MANAGE}

    def perform_create(self, serializer: BaseSerializer) -> None:
        request, asked = self.request, serializer.validated_data
        organization_id, phone = request.organization.pk, str(asked["phone"])
        do_not_call.refuse(
            organization_id, phone, source=DoNotCall.Source.API, actor=request.actor, note=asked.get("note", "")
        )
        serializer.instance = self.get_queryset().get(phone=phone)

    def perform_destroy(self, instance: DoNotCall) -> None:
        """The person may be called again; who said so is in the log."""
        do_not_call.allow(instance, actor=self.request.actor)


class ClosedDayViewSet(_Rows):
    """Days on which campaigns that keep holidays call nobody."""

    queryset = ClosedDay.objects.order_by("-id")
    serializer_class = ClosedDaySerializer


class CustomerRateViewSet(_Rows):
    """At most so many calls on a customer's behalf in any so many seconds."""

    queryset = CustomerRate.objects.order_by("-id")
    serializer_class = CustomerRateSerializer


router = SimpleRouter()
router.register("do-not-call", DoNotCallViewSet, basename="do-not-call")
router.register("closed-days", ClosedDayViewSet, basename="closed-day")
router.register("customer-rates", CustomerRateViewSet, basename="customer-rate")
urlpatterns = router.urls
