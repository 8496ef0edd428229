"""Record calls whose person heard the fallback document instead of the prompt, although our webhook was processed.

The provider requests the fallback if no response of a webhook reached it, or if it could not execute the document.
PostgreSQL is often unavailable then, so Redis has the call's id; PostgreSQL has it if Redis is unavailable.
"""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import urlsplit

import structlog

from dispatch.core.db import prepared
from dispatch.core.redis.client import REDIS_ERRORS, client, key
from dispatch.telephony.models import Call, CallEvent

log = structlog.get_logger(__name__)

FALLBACK = "fallback"
KEPT_S = 86_400
# Webhooks that follow after the person has heard something.
_LATER_KINDS = ("gather", "connected", "agent")
_DOCUMENTS = "SELECT kind FROM telephony_callevent WHERE call_id = %s AND kind IN ('voice', %s)"


def record_fallback(call_id: int, failed_url: str) -> None:
    """Record that the provider requested the fallback of the call, because the document at `failed_url` failed.

    A failure after the first prompt changes nothing. Raises nothing: what cannot be recorded is logged.
    """
    if urlsplit(failed_url).path.endswith(tuple(f"/calls/{call_id}/{kind}" for kind in _LATER_KINDS)):
        return
    try:
        client().set(_name(call_id), 1, ex=KEPT_S)
        return
    except REDIS_ERRORS as error:
        log.warning("fallback_not_recorded_in_redis", call=call_id, error=str(error))
    try:
        organization_id = Call.objects.values_list("organization_id", flat=True).get(pk=call_id)
        fields = {"organization_id": organization_id, "kind": FALLBACK, "payload": {}}
        CallEvent.objects.get_or_create(call_id=call_id, key=FALLBACK, defaults=fields)
    except Exception as error:  # the person hears the apology in any case
        log.warning("fallback_not_recorded", call=call_id, error=str(error).strip())


def was_heard(call: Call) -> bool:
    """Return whether the person of an answered call heard its prompt: the provider fetched and executed it.

    A person who pressed a key heard it. While Redis is unavailable, a fallback that only Redis has is overlooked.
    """
    if call.keys_pressed:
        return True
    rows = prepared.fetch_all(_DOCUMENTS, [call.pk, FALLBACK])
    if {kind for (kind,) in rows} != {"voice"}:
        return False
    try:
        return not client().exists(_name(call.pk))
    except REDIS_ERRORS:
        return True


def find_fallbacks(call_ids: Sequence[int]) -> set[int]:
    """Return the calls whose fallback was requested according to Redis; none while it is unavailable."""
    if not call_ids:
        return set()
    try:
        with client().pipeline(transaction=False) as pipe:
            for call_id in call_ids:
                pipe.exists(_name(call_id))
            return {call_id for call_id, found in zip(call_ids, pipe.execute(), strict=True) if found}
    except REDIS_ERRORS:
        return set()


def _name(call_id: int) -> str:
    return key("telephony", "unheard", call_id)
