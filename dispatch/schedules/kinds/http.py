"""Call a client's URL through the outbox's delivery engine and record the response."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.api.base import OwnedSlugRelatedField
from accounts.models import ApiKey, Organization
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.http.exchange import check_headers
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.outbox import direct_delivery, http_delivery
from dispatch.outbox.direct_delivery import Closed
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules import responses
from dispatch.outbox.services.direct_requests import DirectRequest, DirectResult, Held
from dispatch.outbox.validators import check_own_headers, longest_timeout_s
from dispatch.schedules.kinds import base
from dispatch.schedules.kinds.base import (
    Assignment,
    Kind,
    LeaseCheck,
    Outcome,
    RequestStandIn,
    canceled,
    defer,
    describe_errors,
    failed,
)
from dispatch.schedules.rules.outcomes import FAILED, REFUSED, SUCCEEDED

DEFAULT_TIMEOUT_S = 15.0
MAX_BODY_BYTES = 256 * 1024
ANSWER_CHARACTERS = 2000


class CallSerializer(StrictSerializer):
    """A request to a `url`, or to an endpoint's URL with its headers and signature. POST sends `body` as JSON."""

    url = serializers.CharField(max_length=2000, required=False, validators=[check_target_url])
    endpoint = OwnedSlugRelatedField("name", queryset=Endpoint.objects.all(), required=False)
    method = serializers.ChoiceField(choices=["POST", "GET"], default="POST")
    body = serializers.JSONField(required=False, default=None)
    timeout_s = serializers.FloatField(min_value=0.1, default=DEFAULT_TIMEOUT_S)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("endpoint" in attrs) == ("url" in attrs):
            raise serializers.ValidationError({"url": _("Set either url or endpoint, not both.")})
        if attrs["method"] == "GET" and attrs["body"] is not None:
            raise serializers.ValidationError({"body": _("Not allowed with GET.")})
        if len(json.dumps(attrs["body"])) > MAX_BODY_BYTES:
            raise serializers.ValidationError(
                {"body": _("Must be at most {most} bytes.").format(most=MAX_BODY_BYTES)}
            )
        if attrs["timeout_s"] > longest_timeout_s():
            raise serializers.ValidationError(
                {
                    "timeout_s": _("Must be at most {longest_timeout_s} seconds.").format(
                        longest_timeout_s=f"{longest_timeout_s():g}"
                    )
                }
            )
        return attrs


class HttpKind(Kind):
    """Call URLs. The requests of one queue message run concurrently, as far as their message pools admit them.

    A receiver gets the run's id as Idempotency-Key in every attempt. If a worker dies during a request, the
    receiver may get a second request with the same key.
    """

    name = "http"
    label = mark("Call a URL")
    scope = ApiKey.Scope.MESSAGES

    def check(self, organization: Organization, payload: dict[str, Any]) -> None:
        self._read(organization, payload)

    def check_headers(self, headers: Mapping[str, str]) -> None:
        try:
            check_own_headers(headers)
        except Exception as error:
            raise ValidationError({"headers": getattr(error, "messages", [str(error)])}) from None

    def summary(self, payload: Mapping[str, Any]) -> str:
        return f"{payload.get('method', 'POST')} {payload.get('url') or payload.get('endpoint') or ''}"

    def work(self, given: Sequence[Assignment], keep: LeaseCheck) -> Iterator[tuple[Assignment, Outcome] | None]:
        organizations = Organization.objects.in_bulk({assignment.organization_id for assignment in given})
        assignments: dict[int, Assignment] = {assignment.run_id: assignment for assignment in given}
        requests: list[DirectRequest] = []
        for assignment in given:
            try:
                requests.append(self._build_request(organizations[assignment.organization_id], assignment))
                continue
            except ValidationError as error:
                outcome = Outcome(REFUSED, error=describe_errors(error))
            except ValueError as error:  # an unusable header or secret: no request was made
                outcome = Outcome(REFUSED, error=f"{error}.")
            except Exception as error:
                if base.is_undecided(error):
                    raise
                outcome = failed(error)
            if keep(assignment):
                yield assignment, outcome
        for endings in direct_delivery.send_requests(
            requests,
            may_begin=lambda request: keep(assignments[request.number]),
            is_canceled=lambda request: keep.is_canceled(assignments[request.number]),
            poll_s=lambda: base.CANCEL_POLL_S,
        ):
            for ending in endings:
                yield _outcome(assignments, ending)
            yield None

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        """Return nothing: only the receiver knows which requests arrived."""
        return {}

    def _read(self, organization: Organization, payload: dict[str, Any]) -> dict[str, Any]:
        form = CallSerializer(data=payload, context={"request": RequestStandIn(organization)})
        form.is_valid(raise_exception=True)
        return dict(form.validated_data)

    def _build_request(self, organization: Organization, assignment: Assignment) -> DirectRequest:
        read = self._read(organization, assignment.payload)
        endpoint: Endpoint | None = read.get("endpoint")
        timeout_s = (
            read["timeout_s"] if endpoint is None or "timeout_s" in assignment.payload else endpoint.timeout_s
        )
        request = DirectRequest(
            holder=f"run {assignment.run_id}",
            number=assignment.run_id,
            organization_id=organization.pk,
            method=read["method"],
            url=endpoint.url if endpoint else read["url"],
            body=b"" if read["method"] == "GET" else json.dumps(read["body"], separators=(",", ":")).encode(),
            timeout_s=min(timeout_s, longest_timeout_s()),
            endpoint=endpoint,
            webhook_id=f"run_{assignment.run_id}",
            headers=assignment.headers,
            own_headers={
                "Idempotency-Key": assignment.idempotency_key,
                "Dispatch-Run": str(assignment.run_id),
                "Dispatch-Attempt": str(assignment.attempt),
                "Dispatch-Scheduled-For": assignment.trigger_at.isoformat(),
            },
        )
        check_headers(http_delivery.direct_headers(request))
        return request


def _outcome(assignments: Mapping[int, Assignment], ending: direct_delivery.Ending) -> tuple[Assignment, Outcome]:
    if isinstance(ending, Closed):
        assignment = assignments[ending.request.number]
        return assignment, canceled("The request was closed. The receiver may have processed it.")
    if isinstance(ending, Held):
        assignment = assignments[ending.request.number]
        return assignment, defer(assignment, ending.why, ending.error, ending.wait_s)
    assignment = assignments[ending.call.request.number]
    verdict = ending.verdict
    if verdict.outcome == responses.DEFERRED and ending.status_code is None:  # no request was made
        return assignment, defer(assignment, verdict.error_class, f"{verdict.error.rstrip('.')}.", verdict.delay_s)
    return assignment, _judge_result(ending)


def _judge_result(ending: DirectResult) -> Outcome:
    """Return the outcome of a request: delivered, refused for good, or failed and to be retried."""
    verdict, result = ending.verdict, None
    if ending.status_code is not None:
        answer = ending.answer[:ANSWER_CHARACTERS]
        result = {"status": ending.status_code, "answer": answer, "elapsed_s": round(ending.elapsed_s, 3)}
    if verdict.outcome == responses.DELIVERED:
        return Outcome(SUCCEEDED, result)
    outcome = REFUSED if verdict.outcome == responses.PERMANENT else FAILED
    return Outcome(outcome, result, _describe(ending), verdict.delay_s or None)


def _describe(ending: DirectResult) -> str:
    verdict = ending.verdict
    if ending.status_code is not None and not 200 <= ending.status_code < 300:
        return f"The receiver answered HTTP {ending.status_code}."
    if verdict.error_class == "refused":
        return f"Invalid request: {verdict.error}."[: base.MAX_ERROR_LENGTH]
    return f"{verdict.error.rstrip('.')}."[: base.MAX_ERROR_LENGTH]


KIND = HttpKind()
