"""Write the outbox: two endpoints, delivered messages of the last weeks, and one group blocked by an error."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from dispatch.core.events import SYSTEM
from dispatch.dev.demo.history.jobs import PastJob
from dispatch.dev.demo.history.rows import Batch
from dispatch.outbox.models import Attempt, Endpoint, Message, MessageGroup, Mode, Target
from dispatch.outbox.pointer import group_hash
from dispatch.outbox.services.endpoints import create_endpoint

CRM, BILLING = "CRM", "Billing"
# Messages about jobs of this many days.
DAYS = 14
RETRIED = 0.03  # share of messages whose first attempt failed
REFUSAL = {"error": "unknown_tax_code", "detail": "Tax code AZ-MARICOPA-9 does not exist."}
BLOCKED_GROUP = "customer-4471"


def write_deliveries(
    batch: Batch, chance: random.Random, now: datetime, jobs: Sequence[PastJob], receiver_url: str
) -> None:
    """Create the endpoints, and collect their messages about `jobs`."""
    crm = _endpoint(
        batch, CRM, f"{receiver_url}crm/", Mode.NEXT, ["job.assigned", "job.completed", "job.cancelled"]
    )
    billing = _endpoint(batch, BILLING, f"{receiver_url}billing/", Mode.BLOCK, [])
    writer = _Writer(batch, chance)
    for job in jobs:
        if job.request.at < now - timedelta(days=DAYS):
            continue
        group = f"job-{job.id}"
        about = {"job": job.id, "customer": job.request.customer.name, "technician": job.technician}
        if job.assigned_at:
            writer.delivered(crm, group, "job.assigned", about, job.assigned_at)
        if job.ended_at:
            writer.delivered(crm, group, f"job.{job.status}", about, job.ended_at)
        if job.status == "completed" and job.ended_at and chance.random() < 0.6:
            invoice = {"invoice": 20_000 + job.id, "job": job.id, "total": chance.randrange(80, 900)}
            writer.delivered(billing, f"invoice-{job.id}", "invoice.created", invoice, job.ended_at)
    writer.blocked(billing, now)


def _endpoint(batch: Batch, name: str, url: str, mode: Mode, event_types: Sequence[str]) -> Endpoint:
    fields = {"name": name, "url": url, "mode": mode, "event_types": list(event_types)}
    endpoint, _ = create_endpoint(batch.organization, fields, actor=SYSTEM)
    return endpoint


class _Writer:
    """Write messages with their groups, attempts and events."""

    def __init__(self, batch: Batch, chance: random.Random) -> None:
        self._batch, self._chance = batch, chance
        self._groups: dict[str, dict[str, Any]] = {}
        self._targets: dict[int, int] = {}

    def delivered(self, endpoint: Endpoint, group: str, kind: str, data: dict[str, Any], at: datetime) -> None:
        """Write a message that was delivered, in some cases after a retry."""
        tries = 2 if self._chance.random() < RETRIED else 1
        message = self._message(endpoint, group, kind, data, at, status="COMPLETED", attempts=tries)
        for number in range(1, tries):
            at = self._attempt(message, endpoint, number, at, 503, "failed", "HTTP 503")
            at += timedelta(seconds=30)
        message["ended_at"] = self._attempt(message, endpoint, tries, at, 204, "delivered", "")

    def blocked(self, endpoint: Endpoint, now: datetime) -> None:
        """Write a group that an error has blocked for two hours, and the messages that wait behind it."""
        at = now - timedelta(hours=2, minutes=10)
        data = {"customer": 4471, "invoice": 31_207, "total": 412, "tax_code": "AZ-MARICOPA-9"}
        error = "The receiver answered 422."
        message = self._message(
            endpoint, BLOCKED_GROUP, "invoice.created", data, at, status="ERROR", attempts=1, last_error=error
        )
        ended = self._attempt(
            message, endpoint, 1, at, 422, "permanent", error, answer=json.dumps(REFUSAL), error_class="refused"
        )
        message["ended_at"] = ended
        self._groups[BLOCKED_GROUP].update(blocked_by=message["id"], blocked_since=ended)
        for minutes, kind in (
            (96, "invoice.created"),
            (61, "invoice.paid"),
            (24, "customer.changed"),
            (9, "invoice.created"),
        ):
            waiting = {"customer": 4471, "invoice": 31_207 + minutes}
            self._message(
                endpoint, BLOCKED_GROUP, kind, waiting, now - timedelta(minutes=minutes), status="PENDING", calls=0
            )

    def _message(
        self, endpoint: Endpoint, group: str, kind: str, data: dict[str, Any], at: datetime, **values: Any
    ) -> dict[str, Any]:
        payload = json.dumps({"type": kind, "timestamp": at.isoformat(), "data": data})
        message = self._batch.add(
            Message, endpoint_id=endpoint.pk, target_id=self._target(endpoint), type=kind, payload=payload,
            group_id=self._group(endpoint, group, at)["id"], mode=endpoint.mode, created_at=at, due_at=at,
            epoch=values.get("attempts", 0), **{"calls": values.get("attempts", 0), **values},
        )  # fmt: skip
        self._batch.event(at, "message.created", message["id"], endpoint=endpoint.name, type=kind)
        return message

    def _attempt(
        self,
        message: dict[str, Any],
        endpoint: Endpoint,
        number: int,
        at: datetime,
        code: int,
        outcome: str,
        error: str,
        **values: Any,
    ) -> datetime:
        elapsed = self._chance.uniform(0.04, 0.4)
        started = at + timedelta(seconds=0.2)
        ended = started + timedelta(seconds=elapsed)
        self._batch.add(
            Attempt, message_id=message["id"], number=number, epoch=number, url=endpoint.url, started_at=started,
            ended_at=ended, elapsed_s=round(elapsed, 3), outcome=outcome, status_code=code, error=error, **values,
        )  # fmt: skip
        verb = {"delivered": "completed", "failed": "retrying"}.get(outcome, "failed")
        self._batch.event(started, "message.processing", message["id"])
        self._batch.event(ended, f"message.{verb}", message["id"], error=error)
        return ended

    def _group(self, endpoint: Endpoint, name: str, at: datetime) -> dict[str, Any]:
        if name not in self._groups:
            self._groups[name] = self._batch.add(
                MessageGroup, endpoint_id=endpoint.pk, name=name, target_id=self._target(endpoint), created_at=at,
                key=group_hash(self._batch.organization.pk, endpoint.pk, name),
            )  # fmt: skip
        return self._groups[name]

    def _target(self, endpoint: Endpoint) -> int:
        if endpoint.pk not in self._targets:
            self._targets[endpoint.pk] = Target.objects.get(endpoint=endpoint).pk
        return self._targets[endpoint.pk]
