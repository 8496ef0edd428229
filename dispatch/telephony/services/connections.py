"""Create the calls to people whom another call is connected to (purpose `connect`).

The provider requests them because of the document that `handlers.Connection` becomes, not by our request.
So a leg begins as `requesting`: its first webhook establishes it, and without any, the reconciler resolves it as
every request of unknown outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.telephony import price_sql
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.models import Call
from dispatch.telephony.services import spend_caps
from dispatch.telephony.services.calls import create_call, transition

log = structlog.get_logger(__name__)

PURPOSE = Call.Purpose.CONNECT
# The provider speaks the words before the connection first.
SPOKEN_WITHIN = timedelta(seconds=60)


def create_legs(call: Call, phones: Sequence[str], ring_s: int, limit_s: int) -> list[Call]:
    """Create the calls to these phones (E.164) that `call` is connected to. Each holds a line, as every call.

    They ring for `ring_s` and last `limit_s` at most.

    A phone that is in another call, that may not be called, or for which there is no line, is left out. Repeated,
    it returns the legs that are still open. Legs use the number of `call`, because it is their caller ID.
    """
    legs = []
    with transaction.atomic():
        organization, pool, number = call.organization, call.pool, call.number
        for position, phone in enumerate(phones, start=1):
            try:
                leg = create_call(
                    organization=organization,
                    purpose=PURPOSE,
                    subject_id=call.pk,
                    attempt=position,
                    to_phone=phone,
                    pool=pool,
                    number=number,
                    ring_timeout_s=ring_s,
                    time_limit_s=limit_s,
                    place_by=clock.now() + timedelta(seconds=settings.CALL_SEND_WINDOW_S),
                    context={**call.context, "call_id": call.pk},
                )
            except (NoLine, PhoneBusy, CallNotAllowed) as error:
                log.info("leg_not_created", call=call.pk, leg=position, error=str(error))
                continue
            if leg.status == Call.Status.CREATED and not _request(leg):
                continue
            if leg.ended_at is None:
                legs.append(leg)
    return legs


def _request(leg: Call) -> bool:
    """Record that the provider is asked for the leg now. Return False if the spending cap forbids it."""
    if not spend_caps.reserve(leg.organization_id, price_sql.CALLS, purpose=PURPOSE):
        transition(leg, Call.Status.NOT_PLACED, error_message=f"{spend_caps.REACHED} is reached.")
        return False
    now = clock.now()
    return transition(leg, Call.Status.REQUESTING, requested_at=now, send_by=now + SPOKEN_WITHIN)
