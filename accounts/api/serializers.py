"""Serialize accounts for the API."""

from __future__ import annotations

from typing import Any

from phonenumber_field.serializerfields import PhoneNumberField
from rest_framework import serializers

from accounts.alert_phones import AlertPhone
from accounts.api.base import OwnedSerializer
from accounts.auth.api_keys import check_expiry
from accounts.models import (
    ApiKey,
    Membership,
    Organization,
    User,
    read_countries,
    read_country,
    validate_time_zone,
)
from dispatch.core.api.serializers import StrictSerializer


class OrganizationSerializer(StrictSerializer, serializers.ModelSerializer):
    """The caller's organization. `slug` names it in the X-Organization header."""

    allowed_countries = serializers.ListField(
        child=serializers.RegexField(r"^[A-Z]{2}$", max_length=2),
        help_text="ISO codes of countries that may be called.",
    )
    time_zone = serializers.CharField(max_length=64, validators=[validate_time_zone])
    default_region = serializers.RegexField(r"^[A-Z]{2}$", max_length=2)

    class Meta:
        model = Organization
        fields = ["id", "name", "slug", "time_zone", "default_region", "distance_unit", "allowed_countries"]
        read_only_fields = ["slug"]

    def validate_default_region(self, code: str) -> str:
        return read_country(code)

    def validate_allowed_countries(self, codes: list[str]) -> list[str]:
        return read_countries(codes)


class PersonSerializer(serializers.ModelSerializer):
    """A user as colleagues see them."""

    id = serializers.IntegerField(read_only=True, allow_null=True)
    phone = serializers.CharField(read_only=True)

    class Meta:
        model = User
        fields = ["id", "name", "email", "phone"]
        read_only_fields = fields


class MemberSerializer(OwnedSerializer):
    """A membership: the user, their role and whether they are on duty.

    Until an invited person has joined (`joined_at` is null), only their email address is included: `id` is null.
    """

    user = PersonSerializer(read_only=True)
    alert_phone = serializers.ChoiceField(
        choices=AlertPhone.choices,
        read_only=True,
        help_text="Alerts use a phone that is confirmed, or accepted for a limited time after an upgrade.",
    )

    class Meta:
        model = Membership
        fields = [
            "id", "user", "role", "is_active", "joined_at", "on_duty", "duty_changed_at", "alert_order",
            "alert_phone",
        ]  # fmt: skip
        read_only_fields = ["joined_at", "on_duty", "duty_changed_at"]

    def to_representation(self, membership: Membership) -> dict[str, Any]:
        shown = super().to_representation(membership)
        if membership.joined_at is None:
            # An id would reveal whether the address already has an account in another organization.
            shown["user"] = {**shown["user"], "id": None, "name": "", "phone": ""}
        return shown


class NewMemberSerializer(StrictSerializer):
    """An invitation to become a member.

    `name` and `phone` are suggestions: people with a new account confirm or correct them when they join.
    """

    email = serializers.EmailField(max_length=254)
    name = serializers.CharField(max_length=120)
    phone = PhoneNumberField(required=False, default="", allow_blank=True)
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class AddedMemberSerializer(MemberSerializer):
    """The invited member, and how the invitation was delivered.

    `mailed`: the link was sent by email. If no mail server is configured, `invitation_url` is the link, shown
    only once; pass it on. If neither is set, the mail server refused the message; invite again.
    """

    mailed = serializers.BooleanField(read_only=True)
    invitation_url = serializers.CharField(read_only=True, allow_null=True)

    class Meta(MemberSerializer.Meta):
        fields = [*MemberSerializer.Meta.fields, "mailed", "invitation_url"]


class OwnDutySerializer(StrictSerializer):
    """The caller's own duty state."""

    on_duty = serializers.BooleanField()
    duty_changed_at = serializers.DateTimeField(read_only=True, allow_null=True)


class ApiKeySerializer(OwnedSerializer):
    """An API key without its secret."""

    scopes = serializers.ListField(
        child=serializers.ChoiceField(choices=ApiKey.Scope.choices),
        allow_empty=False,
        max_length=len(ApiKey.Scope),
    )
    created_by = PersonSerializer(read_only=True, allow_null=True)

    class Meta:
        model = ApiKey
        fields = [
            "id",
            "name",
            "prefix",
            "scopes",
            "created_by",
            "created_at",
            "expires_at",
            "revoked_at",
            "last_used_at",
        ]
        read_only_fields = ["prefix", "created_at", "revoked_at", "last_used_at"]
        extra_kwargs = {"expires_at": {"validators": [check_expiry]}}


class NewApiKeySerializer(ApiKeySerializer):
    """A newly created key. `key` is the whole key, shown only once."""

    key = serializers.CharField(read_only=True)

    class Meta(ApiKeySerializer.Meta):
        fields = [*ApiKeySerializer.Meta.fields, "key"]


class PlaceSerializer(serializers.Serializer):
    """An organization that the caller can work in, and the caller's role in it."""

    slug = serializers.CharField()
    name = serializers.CharField()
    role = serializers.ChoiceField(choices=Membership.Role.choices)


class CallerOrganizationSerializer(OrganizationSerializer):
    """The caller's organization. A key without the scope `read` gets only its `id`, `name` and `slug`."""

    settings = ("time_zone", "default_region", "distance_unit", "allowed_countries")

    class Meta(OrganizationSerializer.Meta):
        read_only_fields = OrganizationSerializer.Meta.fields

    def get_fields(self) -> dict[str, serializers.Field]:
        fields = super().get_fields()
        for name in self.settings:
            fields[name].allow_null = True
        return fields


class MeSerializer(serializers.Serializer):
    """The caller. A person has `user`, `role`, `on_duty` and `organizations`; a key has `api_key`.

    Unless the key has the scope `read`, with which it may read the members and the organization, `created_by` of
    the key and the settings of `organization` are null.
    """

    user = PersonSerializer(allow_null=True)
    api_key = ApiKeySerializer(allow_null=True)
    organization = CallerOrganizationSerializer()
    role = serializers.ChoiceField(choices=Membership.Role.choices, allow_null=True)
    on_duty = serializers.BooleanField(allow_null=True)
    organizations = PlaceSerializer(many=True)

    def to_representation(self, caller: dict[str, Any]) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(caller)
        key = caller["api_key"]
        if key is not None and ApiKey.Scope.READ not in key.scopes:
            shown["api_key"] = {**shown["api_key"], "created_by": None}
            hidden = dict.fromkeys(CallerOrganizationSerializer.settings)
            shown["organization"] = {**shown["organization"], **hidden}
        return shown


class ChoiceSerializer(StrictSerializer):
    """The slug of the organization for this session."""

    organization = serializers.SlugField()
