"""Call a client's URL through the SSRF guard and record the response."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import InterfaceError, OperationalError
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rq.timeouts import BaseTimeoutException

from accounts.api.base import OwnedSlugRelatedField
from accounts.models import ApiKey, Organization
from dispatch.core import clock
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.http import client
from dispatch.core.http import webhook_signing as signing
from dispatch.core.http.ssrf import check_target_url
from dispatch.outbox.models import Endpoint, Target
from dispatch.outbox.rules import responses
from dispatch.outbox.validators import check_own_headers, longest_timeout_s
from dispatch.schedules.kinds import base
from dispatch.schedules.kinds.base import (
    Assignment,
    Kind,
    LeaseCheck,
    Outcome,
    RequestStandIn,
    canceled,
    describe_errors,
    failed,
)
from dispatch.schedules.rules.outcomes import FAILED, REFUSED, SUCCEEDED

DEFAULT_TIMEOUT_S = 15.0
MAX_BODY_BYTES = 256 * 1024
ANSWER_BYTES = 2000
# Outcomes of requests that end within this interval are stored together.
GROUP_S = 0.2


class CallSerializer(StrictSerializer):
    """A request to a `url`, or to an endpoint's URL with its headers and signature. POST sends `body` as JSON."""

    url = serializers.CharField(max_length=2000, required=False, validators=[check_target_url])
    endpoint = OwnedSlugRelatedField("name", queryset=Endpoint.objects.all(), required=False)
    method = serializers.ChoiceField(choices=["POST", "GET"], default="POST")
    body = serializers.JSONField(required=False, default=None)
    timeout_s = serializers.FloatField(min_value=0.1, default=DEFAULT_TIMEOUT_S)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("endpoint" in attrs) == ("url" in attrs):
            raise serializers.ValidationError({"url": "Set either url or endpoint, not both."})
        if attrs["method"] == "GET" and attrs["body"] is not None:
            raise serializers.ValidationError({"body": "Not allowed with GET."})
        if len(json.dumps(attrs["body"])) > MAX_BODY_BYTES:
            raise serializers.ValidationError({"body": f"Must be at most {MAX_BODY_BYTES} bytes."})
        if attrs["timeout_s"] > longest_timeout_s():
            raise serializers.ValidationError({"timeout_s": f"Must be at most {longest_timeout_s():g} seconds."})
        return attrs


@dataclass(frozen=True)
class _Call:
    organization_id: int
    url: str
    method: str
    body: bytes
    timeout_s: float
    headers: dict[str, str]
    permanent: tuple[int, ...]


class _NotNow(Exception):
    """The endpoint must not be called now. `again_in_s` None leaves the time to the retry schedule."""

    def __init__(self, reason: str, again_in_s: float | None = None) -> None:
        super().__init__(reason)
        self.again_in_s = again_in_s


class HttpKind(Kind):
    """Call URLs. The requests of one queue message run concurrently.

    A receiver gets the run's id as Idempotency-Key in every attempt. If a worker dies during a request, the
    receiver may get a second request with the same key.
    """

    name = "http"
    label = "Call a URL"
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
        ready: list[tuple[Assignment, _Call]] = []
        for assignment in given:
            if not keep(assignment):
                continue
            try:
                ready.append((assignment, self._build_call(organizations[assignment.organization_id], assignment)))
            except _NotNow as error:
                yield assignment, Outcome(FAILED, error=str(error), again_in_s=error.again_in_s)
            except ValidationError as error:
                yield assignment, Outcome(REFUSED, error=describe_errors(error))
            except ValueError as error:  # an unusable header or secret: no request was made
                yield assignment, Outcome(REFUSED, error=f"{error}.")
            except (OperationalError, InterfaceError, BaseTimeoutException):
                raise
            except Exception as error:
                yield assignment, failed(error)
        yield from _finished_outcomes(ready, keep)

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        """Return nothing: only the receiver knows which requests arrived."""
        return {}

    def _read(self, organization: Organization, payload: dict[str, Any]) -> dict[str, Any]:
        form = CallSerializer(data=payload, context={"request": RequestStandIn(organization)})
        form.is_valid(raise_exception=True)
        return dict(form.validated_data)

    def _build_call(self, organization: Organization, assignment: Assignment) -> _Call:
        read = self._read(organization, assignment.payload)
        endpoint: Endpoint | None = read.get("endpoint")
        if endpoint:
            _check_open(endpoint)
        body = b"" if read["method"] == "GET" else json.dumps(read["body"], separators=(",", ":")).encode()
        configured: dict[str, str] = dict((endpoint.headers or {}) if endpoint else {}) | dict(assignment.headers)  # type: ignore[arg-type]
        dispatch_headers = {
            "Idempotency-Key": assignment.idempotency_key,
            "Dispatch-Run": str(assignment.run_id),
            "Dispatch-Attempt": str(assignment.attempt),
            "Dispatch-Scheduled-For": assignment.trigger_at.isoformat(),
        }
        if endpoint:
            dispatch_headers |= signing.headers(
                endpoint.signing_secrets(clock.now()), f"run_{assignment.run_id}", clock.now(), body
            )
        taken = {name.lower() for name in dispatch_headers}
        headers = {
            name: value for name, value in configured.items() if name.lower() not in taken
        } | dispatch_headers
        if body and "content-type" not in {name.lower() for name in configured}:
            headers["Content-Type"] = "application/json"
        client.check_headers(headers)
        url = endpoint.url if endpoint else read["url"]
        timeout_s = min(read["timeout_s"], longest_timeout_s())
        permanent = endpoint.permanent_codes if endpoint else settings.OUTBOX_PERMANENT_CODES
        return _Call(organization.pk, url, read["method"], body, timeout_s, headers, tuple(permanent))


def _check_open(endpoint: Endpoint) -> None:
    """Raise _NotNow if the endpoint is paused or disabled, or its circuit is open."""
    if endpoint.disabled_at:
        raise _NotNow(f"The endpoint {endpoint.name} is disabled.")
    if endpoint.is_paused:
        raise _NotNow(f"The endpoint {endpoint.name} is paused.")
    target = Target.objects.filter(endpoint=endpoint).only("open_until").first()
    now = clock.now()
    if target and target.open_until and target.open_until > now:
        wait_s = (target.open_until - now).total_seconds()
        raise _NotNow(f"The endpoint {endpoint.name} isn't responding.", wait_s)


def _finished_outcomes(
    ready: Sequence[tuple[Assignment, _Call]], keep: LeaseCheck
) -> Iterator[tuple[Assignment, Outcome] | None]:
    """Make the requests concurrently and yield outcomes in small groups as they finish.

    No outcome waits for the slowest receiver before it is stored. The request of a run that is canceled is closed.
    """
    if not ready:
        return
    with asyncio.Runner() as runner:
        running: dict[asyncio.Task[Outcome], Assignment] = {}
        try:
            runner.run(_start_requests(ready, running))
            while running:
                ended = runner.run(_next_ended(running))
                for task in ended:
                    yield running.pop(task), task.result()
                for task, assignment in list(running.items()):
                    if keep.is_canceled(assignment):
                        task.cancel()
                if ended:
                    yield None
        finally:
            runner.run(client.close())


async def _start_requests(
    ready: Sequence[tuple[Assignment, _Call]], running: dict[asyncio.Task[Outcome], Assignment]
) -> None:
    for assignment, call in ready:
        running[asyncio.create_task(_send_request(call))] = assignment


async def _next_ended(running: Mapping[asyncio.Task[Outcome], Assignment]) -> list[asyncio.Task[Outcome]]:
    """Return the requests that have ended: those of a group, or none if no request ends before the next poll."""
    ended, _ = await asyncio.wait(running, timeout=base.CANCEL_POLL_S, return_when=asyncio.FIRST_COMPLETED)
    if ended:
        await asyncio.wait(running, timeout=GROUP_S)
    return [task for task in running if task.done()]


async def _send_request(call: _Call) -> Outcome:
    """Make one request. A failure of the target is an outcome, not an exception."""
    try:
        if call.method == "GET":
            answer = await client.get(call.url, call.headers, call.timeout_s, organization=call.organization_id)
        else:
            answer = await client.post(
                call.url, call.body, call.headers, call.timeout_s, organization=call.organization_id
            )
    except asyncio.CancelledError:
        return canceled("The request was closed. The receiver may have processed it.")
    except client.ForbiddenTarget as error:
        return Outcome(REFUSED, error=f"Invalid request: {error}.")
    except client.TargetError as error:
        return Outcome(FAILED, error=f"{error}."[:500])
    except Exception as error:
        return failed(error)
    try:
        return _judge_response(answer, call.permanent)
    except Exception as error:
        return failed(error)


def _judge_response(answer: client.Response, permanent: Collection[int]) -> Outcome:
    """Return the outcome: 2xx succeeded, `permanent` codes are refused, 429 and others may be retried."""
    text = answer.body_start[:ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
    result = {"status": answer.status, "answer": text, "elapsed_s": round(answer.elapsed_s, 3)}
    if 200 <= answer.status < 300:
        return Outcome(SUCCEEDED, result)
    refused = answer.status in permanent
    again_in_s = responses.retry_after_s(answer.headers, clock.now())
    if again_in_s is not None:
        again_in_s = min(again_in_s, settings.OUTBOX_LONGEST_DEFERRAL_S)
    error = f"The receiver answered HTTP {answer.status}."
    return Outcome(REFUSED if refused else FAILED, result, error, again_in_s)


KIND = HttpKind()
