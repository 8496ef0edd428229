"""What is kept of whoever was called or texted: calls and texts that are over lose their numbers and words."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from dispatch.core import personal
from dispatch.core.personal import Part, Person, Trace
from dispatch.telephony.models import Call, CallEvent, InboundCall, OptOut, Text


def _calls(person: Person) -> Any:
    rows = Call.objects.of(person.organization_id)
    return rows.filter(to_phone=person.phone) if person.phone else rows.none()


def _texts(person: Person) -> Any:
    rows = Text.objects.of(person.organization_id)
    return rows.filter(Q(to_phone=person.phone) | Q(from_phone=person.phone)) if person.phone else rows.none()


def _inbound(person: Person) -> Any:
    rows = InboundCall.objects.of(person.organization_id)
    return rows.filter(from_phone=person.phone) if person.phone else rows.none()


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    told = CallEvent.objects.filter(call__in=_calls(person))
    opted_out = OptOut.objects.of(person.organization_id).filter(phone=person.phone or "-")
    return {
        "calls": personal.as_rows(_calls(person)),
        "provider_events": personal.as_rows(told),
        "texts": personal.as_rows(_texts(person)),
        "inbound_calls": personal.as_rows(_inbound(person)),
        "opt_outs": personal.as_rows(opted_out),
    }


def blocked_by(person: Person) -> list[str]:
    calls = _calls(person).filter(ended_at=None).exists() or _inbound(person).filter(ended_at=None).exists()
    texts = _texts(person).filter(ended_at=None).exists()
    return ["They are being called or texted just now: try again in a few minutes."] if calls or texts else []


def traces(person: Person) -> list[Trace]:
    return [
        Trace("call", list(_calls(person).values_list("pk", flat=True))),
        Trace("text", list(_texts(person).values_list("pk", flat=True))),
    ]


def erase(person: Person) -> int:
    CallEvent.objects.filter(call__in=_calls(person)).update(payload={})
    count = _texts(person).filter(from_phone=person.phone).update(from_phone="", body="")
    count += _texts(person).update(to_phone="", body="", context={})
    count += _inbound(person).update(from_phone="")
    count += _calls(person).update(to_phone="", context={})
    return count


PART = Part(rows, erase, traces, blocked_by)
