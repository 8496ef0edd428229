"""A lead in a campaign: a follow-up call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.exceptions import ValidationError

from accounts.models import ApiKey, Organization
from dispatch.leads.models import Campaign
from dispatch.leads.serializers import NewLeadSerializer
from dispatch.leads.services.intake import NewLead, accept, callable_phone
from dispatch.schedules.kinds.base import Asker, Assignment, OneByOne

# The schedule itself says when, and the run says what is the same.
_OF_THE_SCHEDULE = ("due_at", "external_id")


class LeadKind(OneByOne):
    """The payload is one lead of `POST /api/v1/leads/`. When its time comes it is due at once: it is called within
    its campaign's hours, caps and rules, as any other."""

    name = "lead"
    label = "Add a lead to a campaign, to be called"
    scope = ApiKey.Scope.LEADS

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        read = self._read(organization, payload)
        countries = tuple(organization.allowed_countries)
        _, error = callable_phone(read["phone"], organization.default_region, countries)
        if error:
            raise ValidationError({"phone": f"{error[:1].upper()}{error[1:]}."})

    def summary(self, payload: Mapping[str, Any]) -> str:
        return f"{payload.get('phone', '')} in {payload.get('campaign', '')}"

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
        (accepted,) = accept(campaign, [lead], actor=assignment.actor)
        if accepted.error:
            raise ValidationError({"phone": accepted.error})
        return {"lead": accepted.id}

    def _read(self, organization: Organization, payload: dict[str, Any]) -> dict[str, Any]:
        if taken := [name for name in _OF_THE_SCHEDULE if name in payload]:
            raise ValidationError(dict.fromkeys(taken, "The schedule says this."))
        form = NewLeadSerializer(data=payload, context={"request": Asker(organization)})
        form.is_valid(raise_exception=True)
        return dict(form.validated_data)


KIND = LeadKind()
