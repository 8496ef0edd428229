"""Serve the API of accounts."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.exceptions import PermissionDenied
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts import invitations, services, tenancy
from accounts.alert_phones import with_alert_phone
from accounts.api.base import OrganizationViewSet
from accounts.api.serializers import (
    AddedMemberSerializer,
    ApiKeySerializer,
    ChoiceSerializer,
    MemberSerializer,
    MeSerializer,
    NewApiKeySerializer,
    NewMemberSerializer,
    OrganizationSerializer,
    OwnDutySerializer,
)
from accounts.auth.authentication import enter_organization
from accounts.auth.permissions import ADMIN, ANYONE, MEMBER
from accounts.models import ApiKey, Membership, User
from dispatch.core.api.problems import Unprocessable


def describe_caller(request: Request) -> dict[str, Any]:
    """Return the body of /me."""
    person = request.user if isinstance(request.user, User) else None
    key = request.auth if isinstance(request.auth, ApiKey) else None
    memberships = person.active_memberships if person else []
    return {
        "user": person,
        "api_key": key,
        "organization": request.organization,
        "role": request.role,
        "on_duty": request.membership.on_duty if request.membership else None,
        "organizations": [
            {"slug": m.organization.slug, "name": m.organization.name, "role": m.role} for m in memberships
        ],
    }


class MeView(APIView):
    """Return the caller and the current organization."""

    required = {"get": ANYONE}

    @extend_schema(responses=MeSerializer)
    def get(self, request: Request) -> Response:
        return Response(MeSerializer(describe_caller(request), context={"request": request}).data)


class ChooseOrganizationView(APIView):
    """Choose the organization of this session, used when no X-Organization header names one."""

    required = {"post": MEMBER}

    @extend_schema(request=ChoiceSerializer, responses=MeSerializer)
    def post(self, request: Request) -> Response:
        given = ChoiceSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        try:
            context = tenancy.membership_context(tenancy.user_of(request), given.validated_data["organization"])
        except tenancy.NoOrganization as error:
            raise PermissionDenied(str(error)) from None
        request.session[tenancy.SESSION_KEY] = context.organization.pk
        enter_organization(request._request, context)
        return Response(MeSerializer(describe_caller(request), context={"request": request}).data)


class OrganizationView(APIView):
    """The caller's organization."""

    required = {"get": "read", "patch": ADMIN}

    @extend_schema(responses=OrganizationSerializer)
    def get(self, request: Request) -> Response:
        return Response(OrganizationSerializer(request.organization).data)

    @extend_schema(request=OrganizationSerializer(partial=True), responses=OrganizationSerializer)
    def patch(self, request: Request) -> Response:
        changed = OrganizationSerializer(request.organization, data=request.data, partial=True)
        changed.is_valid(raise_exception=True)
        services.change_organization(request.organization.pk, changed.validated_data, actor=request.actor)
        request.organization.refresh_from_db()
        return Response(OrganizationSerializer(request.organization).data)


class DutyView(APIView):
    """The caller's own duty state in this organization."""

    required = {"get": MEMBER, "post": MEMBER}

    @extend_schema(responses=OwnDutySerializer)
    def get(self, request: Request) -> Response:
        return Response(OwnDutySerializer(self._own(request)).data)

    @extend_schema(request=OwnDutySerializer, responses=OwnDutySerializer)
    def post(self, request: Request) -> Response:
        given = OwnDutySerializer(data=request.data)
        given.is_valid(raise_exception=True)
        own = services.set_duty(self._own(request).pk, given.validated_data["on_duty"], actor=request.actor)
        return Response(OwnDutySerializer(own).data)

    def _own(self, request: Request) -> Membership:
        if request.membership is None:
            raise Unprocessable("You're not a member of this organization.", "not_a_member")
        return request.membership


class MemberViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OrganizationViewSet):
    """The members of the organization, their roles and who is on duty."""

    queryset = Membership.objects.select_related("user")
    serializer_class = MemberSerializer
    filterset_fields = ["role", "is_active", "on_duty"]
    http_method_names = ["get", "post", "patch", "delete"]
    required = {
        "list": "read", "retrieve": "read", "create": ADMIN, "invite": ADMIN, "partial_update": ADMIN,
        "destroy": ADMIN,
    }  # fmt: skip

    def get_queryset(self) -> QuerySet:
        return with_alert_phone(super().get_queryset())

    @extend_schema(request=NewMemberSerializer, responses={201: AddedMemberSerializer})
    def create(self, request: Request) -> Response:
        given = NewMemberSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        member, _ = services.add_member(request.organization, **given.validated_data, actor=request.actor)
        return self._invited(member, invitations.send_invitation(member), status.HTTP_201_CREATED)

    @extend_schema(request=None, responses=AddedMemberSerializer)
    @action(detail=True, methods=["post"])
    def invite(self, request: Request, **kwargs: Any) -> Response:
        """Send the invitation again. Five can be mailed to one person at once, then one every twelve minutes."""
        member = self.get_object()
        if member.joined_at is not None:
            raise Unprocessable("This person has already joined.", "already_joined")
        return self._invited(member, invitations.send_invitation_again(member), status.HTTP_200_OK)

    def _invited(self, member: Membership, sent: invitations.InvitationResult, code: int) -> Response:
        shown = get_object_or_404(self.get_queryset(), pk=member.pk)  # it may be removed meanwhile
        answer = {**self.get_serializer(shown).data, "mailed": sent.mailed, "invitation_url": sent.link}
        return Response(answer, status=code, headers={"Cache-Control": "no-store"})

    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        member = self.get_object()
        given = self.get_serializer(member, data=request.data, partial=True)
        given.is_valid(raise_exception=True)
        services.change_member(member.pk, **given.validated_data, actor=request.actor)
        return Response(self.get_serializer(self.get_object()).data)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, **kwargs: Any) -> Response:
        services.remove_member(self.get_object().pk, actor=request.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)


class ApiKeyViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OrganizationViewSet):
    """API keys. The whole key is returned only when it is created.

    A key created without `expires_at` expires after a year (`API_KEY_DAYS`); null means never. The key is revoked
    when its creator is no longer an active admin, or superuser.
    """

    queryset: QuerySet = ApiKey.objects.select_related("created_by")
    serializer_class = ApiKeySerializer
    required = {"list": ADMIN, "retrieve": ADMIN, "create": ADMIN, "revoke": ADMIN}

    @extend_schema(request=ApiKeySerializer, responses={201: NewApiKeySerializer})
    def create(self, request: Request) -> Response:
        given = self.get_serializer(data=request.data)
        given.is_valid(raise_exception=True)
        person = request.user if isinstance(request.user, User) else None
        fields = {"expires_at": services.default_key_expiry(), **given.validated_data}
        key, whole = services.create_api_key(
            request.organization, **fields, created_by=person, actor=request.actor
        )
        answer = {**self.get_serializer(key).data, "key": whole}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(request=None, responses=ApiKeySerializer)
    @action(detail=True, methods=["post"])
    def revoke(self, request: Request, **kwargs: Any) -> Response:
        """Revoke the key immediately."""
        key = services.revoke_api_key(self.get_object().pk, actor=request.actor)
        return Response(self.get_serializer(key).data)
