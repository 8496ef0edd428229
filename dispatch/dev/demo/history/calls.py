"""Write phone calls of the past with the events that the provider reported."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core.events import Actor
from dispatch.dev.demo.history.rows import Batch
from dispatch.telephony.models import Call

PROVIDER = Actor("provider", None, "Phone provider")
# The outcome of a call that was not answered: the call's status. Others failed.
UNANSWERED = {"busy": "busy", "no_answer": "no_answer"}


@dataclass(frozen=True)
class PastCall:
    """Describe a call. `key_at`: when `key` was pressed. `answered_at`: None if it was not answered."""

    to_phone: str
    outcome: str
    requested_at: datetime
    ringing_at: datetime
    answered_at: datetime | None
    ended_at: datetime
    key: str = ""
    key_at: datetime | None = None


PRICE_PER_MINUTE = Decimal("0.014")


class CallWriter:
    """Write calls from the numbers of a pool."""

    def __init__(self, batch: Batch, chance: random.Random, pool: DispatchPool) -> None:
        self._batch, self._chance = batch, chance
        self._numbers = list(OutboundNumber.objects.of(batch.organization).filter(pool=pool).order_by("pk"))

    def write(
        self,
        purpose: str,
        subject_id: int,
        call: PastCall,
        *,
        attempt: int = 1,
        context: dict[str, Any] | None = None,
    ) -> int:
        """Collect an ended call with its events, and return its id."""
        number = self._chance.choice(self._numbers)
        status = "completed" if call.answered_at else UNANSWERED.get(call.outcome, "failed")
        at = call.requested_at
        row = self._batch.add(
            Call, purpose=purpose, subject_id=subject_id, attempt=attempt, account_id=number.account_id,
            number_id=number.pk, pool_id=number.pool_id, line_slot=1, pool_slot=1, to_phone=call.to_phone,
            from_phone=number.phone.as_e164, status=status, place_by=at + timedelta(minutes=5), not_before=at,
            created_at=at, requested_at=at, submitted_at=at, answered_at=call.answered_at, ended_at=call.ended_at,
            duration_s=round((call.ended_at - call.answered_at).total_seconds()) if call.answered_at else 0,
            keys_pressed=call.key, context=context or {}, last_sequence=3, price=_price(call), price_unit="USD",
        )  # fmt: skip
        pk: int = row["id"]
        row["sid"] = f"CA{pk:032x}"
        steps: list[tuple[datetime, str, dict[str, Any]]] = [
            (at, "submitted", {}),
            (call.ringing_at, "ringing", {}),
        ]
        if call.answered_at:
            steps.append((call.answered_at, "answered", {}))
        if call.key and call.key_at:
            steps.append((call.key_at, "key_pressed", {"key": call.key}))
        about = {**(context or {}), "purpose": purpose, "subject_id": subject_id, "attempt": attempt}
        for moment, verb, more in [*steps, (call.ended_at, status, {})]:
            self._batch.event(moment, f"call.{verb}", pk, PROVIDER, **about, **more)
        return pk


def _price(call: PastCall) -> Decimal:
    """Return what the call cost, for each minute begun. Calls without an answer are free."""
    if call.answered_at is None:
        return Decimal(0)
    minutes = -(-(call.ended_at - call.answered_at) // timedelta(minutes=1))
    return PRICE_PER_MINUTE * minutes
