"""Submit a form, which creates a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accounts.models import ApiKey, Organization
from dispatch.core.languages import mark
from dispatch.jobs.api.serializers import SubmissionFormSerializer
from dispatch.jobs.services import accept_submission
from dispatch.schedules.kinds.base import Assignment, CreateOnceKind, RequestStandIn


class SubmissionKind(CreateOnceKind):
    """Submit forms. The payload is the form as in `POST /api/v1/submissions/`.

    It is validated again when the run executes, because a service type may have been disabled.
    """

    name = "submission"
    label = mark("Create a job")
    scope = ApiKey.Scope.SUBMIT

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        self._form(organization, payload)

    def summary(self, payload: Mapping[str, Any]) -> str:
        parts = [payload.get("service_type"), payload.get("customer_name"), payload.get("address")]
        return ", ".join(str(part) for part in parts if part)

    def create(self, assignment: Assignment, organization: Organization) -> dict[str, Any]:
        submission = accept_submission(
            organization,
            self._form(organization, assignment.payload),
            raw=assignment.payload,
            actor=assignment.actor,
            idempotency_key=assignment.idempotency_key,
        )
        return {"submission": submission.pk}

    def _form(self, organization: Organization, payload: dict[str, Any]) -> dict[str, Any]:
        form = SubmissionFormSerializer(data=payload, context={"request": RequestStandIn(organization)})
        form.is_valid(raise_exception=True)
        return dict(form.validated_data)


KIND = SubmissionKind()
