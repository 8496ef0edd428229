"""Serve the API of portal links: create, list and revoke them."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedSerializer, OwnedSlugRelatedField
from accounts.models import ApiKey
from dispatch.outbox.models import Endpoint, PortalLink
from dispatch.outbox.services import portal
from dispatch.outbox.validators import check_event_type

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE


def portal_url(link: PortalLink, code: str) -> str:
    """Return the URL to give to the receiver."""
    return f"{settings.PUBLIC_BASE_URL}/portal/{link.uid}/open/{code}/"


class PortalLinkSerializer(OwnedSerializer):
    """A link that opens the portal of one `endpoint` (its name), or of all endpoints with the label `receiver`."""

    endpoint = OwnedSlugRelatedField("name", queryset=Endpoint.objects.all(), required=False, allow_null=True)
    event_types = serializers.ListField(
        child=serializers.CharField(max_length=80, validators=[check_event_type]), max_length=100, required=False,
        help_text="What the receiver may subscribe to. Default: what its endpoints are subscribed to now.",
    )  # fmt: skip
    link_s = serializers.IntegerField(
        min_value=60, max_value=portal.MAX_LINK_S, default=portal.LINK_S, write_only=True,
        help_text="The link must be opened within this time. It can be opened once.",
    )  # fmt: skip
    session_s = serializers.IntegerField(
        min_value=60, max_value=portal.MAX_SESSION_S, default=portal.SESSION_S,
        help_text="How long the portal stays open after that.",
    )  # fmt: skip
    state = serializers.SerializerMethodField()

    class Meta:
        model = PortalLink
        fields = [
            "id", "endpoint", "receiver", "label", "event_types", "is_read_only", "link_s", "session_s", "state",
            "expires_at", "opened_at", "session_until", "revoked_at", "created_by", "created_at",
        ]  # fmt: skip
        read_only_fields = ["expires_at", "opened_at", "session_until", "revoked_at", "created_by"]

    @extend_schema_field(serializers.ChoiceField(choices=portal.STATES))
    def get_state(self, link: PortalLink) -> str:
        return portal.state_of(link)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        organization_id = self.context["request"].organization.pk
        portal.check_scope(organization_id, attrs.get("endpoint"), attrs.get("receiver", ""))
        return attrs


class NewPortalLinkSerializer(PortalLinkSerializer):
    """The response to a creation: the link and its URL, which is not shown again."""

    url = serializers.CharField(read_only=True)

    class Meta(PortalLinkSerializer.Meta):
        fields = [*PortalLinkSerializer.Meta.fields, "url"]


class PortalLinkViewSet(
    OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin
):
    """Portal links: they let receivers see their deliveries, replay them, and rotate secrets."""

    queryset: QuerySet = PortalLink.objects.select_related("endpoint").order_by("-id")
    serializer_class = PortalLinkSerializer
    filterset_fields = ["receiver"]
    http_method_names = ["get", "post"]
    required = {"list": _READ, "retrieve": _READ, "create": _MANAGE, "revoke": _MANAGE}

    @extend_schema(request=PortalLinkSerializer, responses={201: NewPortalLinkSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        given = self.get_serializer(data=request.data)
        given.is_valid(raise_exception=True)
        link, code = portal.create_link(request.organization, **given.validated_data, actor=request.actor)
        answer = {**self.get_serializer(link).data, "url": portal_url(link, code)}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(request=None, responses=PortalLinkSerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **kwargs: Any) -> Response:
        """Revoke the link and end its session."""
        link = self.get_object()
        portal.revoke_link(link.pk, actor=request.actor)
        return Response(self.get_serializer(self.get_queryset().get(pk=link.pk)).data)


router = SimpleRouter()
router.register("portal-links", PortalLinkViewSet, basename="portal-link")
urlpatterns = router.urls
