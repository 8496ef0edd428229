"""A call to a client's URL, through the guarded client; the answer is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from accounts.models import ApiKey, Organization
from accounts.owned_api import OwnedSlugRelatedField
from dispatch.core import clock, http_client
from dispatch.core import webhook_signing as signing
from dispatch.core.strict import Strict
from dispatch.core.target_urls import check_target_url
from dispatch.outbox.endpoint_checks import check_own_headers, longest_timeout_s
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules import calls
from dispatch.schedules.kinds.base import Asker, Assignment, Keep, Kind, Outcome, words
from dispatch.schedules.rules.outcomes import FAILED, REFUSED, SUCCEEDED

DEFAULT_TIMEOUT_S = 15.0
LARGEST_BODY = 256 * 1024
ANSWER_BYTES = 2000


class CallSerializer(Strict):
    """A call: to a `url`, or to an endpoint's URL with its headers and signature. POST sends `body` as JSON."""

    url = serializers.CharField(max_length=2000, required=False, validators=[check_target_url])
    endpoint = OwnedSlugRelatedField("name", queryset=Endpoint.objects.all(), required=False)
    method = serializers.ChoiceField(choices=["POST", "GET"], default="POST")
    body = serializers.JSONField(required=False, default=None)
    timeout_s = serializers.FloatField(min_value=0.1, default=DEFAULT_TIMEOUT_S)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("endpoint" in attrs) == ("url" in attrs):
            raise serializers.ValidationError({"url": "Give a url or name an endpoint, one of them."})
        if attrs["method"] == "GET" and attrs["body"] is not None:
            raise serializers.ValidationError({"body": "A GET has none."})
        if len(json.dumps(attrs["body"])) > LARGEST_BODY:
            raise serializers.ValidationError({"body": f"At most {LARGEST_BODY} bytes."})
        if attrs["timeout_s"] > longest_timeout_s():
            raise serializers.ValidationError({"timeout_s": f"At most {longest_timeout_s():g} seconds."})
        return attrs


@dataclass(frozen=True)
class _Call:
    url: str
    method: str
    body: bytes
    timeout_s: float
    headers: dict[str, str]


class HttpKind(Kind):
    """Calls of one message are made side by side. A receiver sees the run's id as Idempotency-Key in every
    attempt: when a worker died in the middle, it may be called once more with the same one."""

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

    def work(self, given: Sequence[Assignment], keep: Keep) -> Iterator[tuple[Assignment, Outcome]]:
        organizations = Organization.objects.in_bulk({one.organization_id for one in given})
        ready: list[tuple[Assignment, _Call]] = []
        for one in given:
            if not keep(one):
                continue
            try:
                ready.append((one, self._call(organizations[one.organization_id], one)))
            except ValidationError as error:
                yield one, Outcome(REFUSED, error=words(error))
            except ValueError as error:  # a header or a secret that cannot be sent: nobody was called
                yield one, Outcome(REFUSED, error=f"{error}.")
        yield from asyncio.run(_all(ready))

    def find(self, given: Sequence[Assignment]) -> dict[int, dict[str, Any]]:
        """Nobody but the receiver knows."""
        return {}

    def _read(self, organization: Organization, payload: dict[str, Any]) -> dict[str, Any]:
        form = CallSerializer(data=payload, context={"request": Asker(organization)})
        form.is_valid(raise_exception=True)
        return dict(form.validated_data)

    def _call(self, organization: Organization, one: Assignment) -> _Call:
        read = self._read(organization, one.payload)
        endpoint: Endpoint | None = read.get("endpoint")
        body = b"" if read["method"] == "GET" else json.dumps(read["body"], separators=(",", ":")).encode()
        own: dict[str, str] = dict((endpoint.headers or {}) if endpoint else {}) | dict(one.headers)  # type: ignore[arg-type]
        ours = {
            "Idempotency-Key": one.idempotency_key,
            "Dispatch-Run": str(one.run_id),
            "Dispatch-Attempt": str(one.attempt),
            "Dispatch-Scheduled-For": one.trigger_at.isoformat(),
        }
        if endpoint:
            ours |= signing.headers(_secrets(endpoint), f"run_{one.run_id}", clock.now(), body)
        taken = {name.lower() for name in ours}
        headers = {name: value for name, value in own.items() if name.lower() not in taken} | ours
        if body and "content-type" not in {name.lower() for name in own}:
            headers["Content-Type"] = "application/json"
        http_client.check_headers(headers)
        url = endpoint.url if endpoint else read["url"]
        return _Call(url, read["method"], body, min(read["timeout_s"], longest_timeout_s()), headers)


def _secrets(endpoint: Endpoint) -> list[str]:
    until = endpoint.previous_secret_until
    both = endpoint.previous_secret and (until is None or until > clock.now())
    return [endpoint.secret, endpoint.previous_secret] if both else [endpoint.secret]


async def _all(ready: Sequence[tuple[Assignment, _Call]]) -> list[tuple[Assignment, Outcome]]:
    try:
        outcomes = await asyncio.gather(*(_make(call) for _, call in ready))
    finally:
        await http_client.close()
    return [(one, outcome) for (one, _), outcome in zip(ready, outcomes, strict=True)]


async def _make(call: _Call) -> Outcome:
    """One call. What the target does is an outcome, never an error here."""
    try:
        if call.method == "GET":
            answer = await http_client.get(call.url, call.headers, call.timeout_s)
        else:
            answer = await http_client.post(call.url, call.body, call.headers, call.timeout_s)
    except http_client.TargetRefused as error:
        return Outcome(REFUSED, error=f"This cannot be called: {error}.")
    except http_client.TargetError as error:
        return Outcome(FAILED, error=f"{error}."[:500])
    return _judged(answer)


def _judged(answer: http_client.Response) -> Outcome:
    """2xx succeeded; 429 and most others are tried again, refusals (OUTBOX_PERMANENT_CODES) are not."""
    text = answer.body_start[:ANSWER_BYTES].decode("utf-8", "replace").replace("\x00", "\ufffd")
    result = {"status": answer.status, "answer": text, "elapsed_s": round(answer.elapsed_s, 3)}
    if 200 <= answer.status < 300:
        return Outcome(SUCCEEDED, result)
    refused = answer.status in settings.OUTBOX_PERMANENT_CODES
    again = calls.retry_after_s(answer.headers, clock.now())
    if again is not None:
        again = min(again, settings.OUTBOX_LONGEST_DEFERRAL_S)
    error = f"The receiver answered {answer.status}."
    return Outcome(REFUSED if refused else FAILED, result, error, again)


KIND = HttpKind()
