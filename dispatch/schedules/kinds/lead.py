"""Add a lead to a campaign: a follow-up call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from phonenumber_field.phonenumber import PhoneNumber, to_python
from rest_framework.exceptions import ValidationError

from accounts.models import ApiKey, Organization
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.leads.api.lead_serializers import NewLeadSerializer
from dispatch.leads.models import Campaign
from dispatch.leads.services.intake import NewLead, accept_leads, callable_phone
from dispatch.schedules.kinds.base import Assignment, CreateOnceKind, RequestStandIn

# Payload fields that are not allowed: the schedule sets the time, and the run sets the idempotency key.
_RESERVED_FIELDS = ("due_at", "external_id")


class LeadKind(CreateOnceKind):
    """Add leads. The payload is one lead as in `POST /api/v1/leads/`.

    When the run executes, the lead is due at once. Its campaign's calling rules apply as for every other lead.
    """

    name = "lead"
    label = mark("Add a lead to a campaign")
    scope = ApiKey.Scope.LEADS

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        read = self._read(organization, payload)
        countries = tuple(organization.allowed_countries)
        _, error = callable_phone(read["phone"], organization.default_region, countries)
        if error:
            raise ValidationError({"phone": f"{error[:1].upper()}{error[1:]}."})

    def summary(self, payload: Mapping[str, Any]) -> str:
        phone, number = payload.get("phone", ""), to_python(str(payload.get("phone", "")))
        if isinstance(number, PhoneNumber) and number.is_valid():
            phone = number.as_national
        return _("{phone} in {campaign}").format(phone=phone, campaign=payload.get("campaign", ""))

    def create(self, assignment: Assignment, organization: Organization) -> dict[str, Any]:
        read = self._read(organization, assignment.payload)
        campaign: Campaign = read["campaign"]
        lead = NewLead(
            phone=read["phone"],
            lat=read.get("lat"),
            lng=read.get("lng"),
            customer=read["customer"],
            external_id=assignment.idempotency_key,
            data=read["data"],
        )
        (accepted,) = accept_leads(campaign, [lead], actor=assignment.actor)
        if accepted.error:
            raise ValidationError({"phone": accepted.error})
        if accepted.is_duplicate:
            return {"lead": accepted.id, "is_duplicate": True}
        return {"lead": accepted.id}

    def _read(self, organization: Organization, payload: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in _RESERVED_FIELDS if name in payload]:
            raise ValidationError(dict.fromkeys(taken, _("Set by the schedule.")))
        form = NewLeadSerializer(data=payload, context={"request": RequestStandIn(organization)})
        form.is_valid(raise_exception=True)
        return dict(form.validated_data)


KIND = LeadKind()
