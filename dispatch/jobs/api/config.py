"""The API of service types and dispatch policies."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.base import DeletableViewSet, EditableViewSet, OwnedSerializer, OwnedSlugRelatedField
from accounts.api.etags import VersionedMixin
from dispatch.capacity.models import DispatchPool
from dispatch.jobs import policies
from dispatch.jobs.models import DispatchPolicy, ServiceType
from dispatch.jobs.rules.policy import FIELDS
from dispatch.jobs.rules.quiet_hours import FIELDS as QUIET_FIELDS
from dispatch.jobs.services import config
from dispatch.technicians.models import Skill


class ConfigViewSet(VersionedMixin, EditableViewSet):
    """Records every change with its actor in the event log."""

    notes_itself = True

    def perform_create(self, serializer: Any) -> None:
        write = partial(serializer.save, organization=self.request.organization)
        config.save_config(write, serializer.validated_data, actor=self.request.actor, is_new=True)

    def perform_update(self, serializer: Any) -> None:
        row = serializer.instance
        changed = {name: new for name, new in serializer.validated_data.items() if new != _present(row, name)}
        config.save_config(serializer.save, changed, actor=self.request.actor, is_new=False)


def _present(row: Any, name: str) -> Any:
    value = getattr(row, name)
    return list(value.all()) if row._meta.get_field(name).many_to_many else value


class ServiceTypeSerializer(OwnedSerializer):
    """A service that customers can request. Submissions refer to it by `code`. Skills are given by code."""

    required_skills = OwnedSlugRelatedField("code", many=True, queryset=Skill.objects.all(), required=False)
    preferred_skills = OwnedSlugRelatedField(
        "code",
        many=True,
        queryset=Skill.objects.all(),
        required=False,
        help_text="Technicians who have these are called earlier.",
    )

    class Meta:
        model = ServiceType
        fields = [
            "id",
            "code",
            "name",
            "spoken_name",
            "required_skills",
            "preferred_skills",
            "expected_minutes",
            "is_active",
        ]


class ServiceTypeViewSet(ConfigViewSet):
    """Service types. Set `is_active` to false instead of deleting one, because jobs refer to it."""

    subject = "service_type"
    queryset = ServiceType.objects.prefetch_related("required_skills", "preferred_skills").order_by("-id")
    serializer_class = ServiceTypeSerializer
    filterset_fields = ["is_active", "code"]


class DispatchPolicySerializer(OwnedSerializer):
    """How jobs of a service type (null: of the whole organization) are offered.

    A null field falls back: service type → organization → installation defaults. `effective` shows the result.
    Running jobs keep the policy they started with, except `call_pool` and the quiet hours.
    """

    service_type = OwnedSlugRelatedField(
        "code", queryset=ServiceType.objects.all(), required=False, allow_null=True, default=None
    )
    call_pool = OwnedSlugRelatedField(
        "code", queryset=DispatchPool.objects.filter(kind="calls"), required=False, allow_null=True
    )
    effective = serializers.SerializerMethodField()

    class Meta:
        model = DispatchPolicy
        fields = ["id", "service_type", "call_pool", *FIELDS, *QUIET_FIELDS, "duplicate_hours", "effective"]

    @extend_schema_field({"type": "object", "additionalProperties": True})
    def get_effective(self, row: DispatchPolicy) -> dict[str, Any]:
        chain = policies.load_chain(row.organization_id, row.service_type_id)
        quiet = chain.quiet
        hours = {"quiet_from": f"{quiet.quiet_from:%H:%M}", "quiet_until": f"{quiet.quiet_until:%H:%M}"}
        within = chain.duplicate_hours
        return {**chain.cascade.to_json(), "quiet_for": quiet.quiet_for, **hours, "duplicate_hours": within}

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if self.instance is not None and self.partial and "service_type" not in self.initial_data:
            attrs.pop("service_type", None)
        attrs = super().validate(attrs)
        row = copy.copy(self.instance) if self.instance else DispatchPolicy()
        row.organization = self.context["request"].organization
        for name, value in attrs.items():
            setattr(row, name, value)
        taken = DispatchPolicy.objects.of(row.organization).exclude(pk=row.pk)
        if taken.filter(service_type=row.service_type).exists():
            raise serializers.ValidationError({"service_type": "A policy for this service type already exists."})
        if problems := policies.problems_of(row):
            raise serializers.ValidationError(problems)
        return attrs


class DispatchPolicyViewSet(ConfigViewSet, DeletableViewSet):
    """Dispatch policies: one for the organization, and one for each service type that differs from it."""

    subject = "policy"
    queryset = DispatchPolicy.objects.select_related("service_type", "call_pool").order_by("-id")
    serializer_class = DispatchPolicySerializer

    def perform_destroy(self, instance: DispatchPolicy) -> None:
        config.delete_config(instance, actor=self.request.actor)
