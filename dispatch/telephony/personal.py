"""Handle personal data in calls and texts. Erasure removes numbers and contents from ended rows."""

from __future__ import annotations

from typing import Any

from django.db.models import Q

from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject, EventReference, PersonalDataHandler
from dispatch.telephony.models import Call, CallEvent, InboundCall, OptOut, Text


def _calls(person: DataSubject) -> Any:
    rows = Call.objects.of(person.organization_id)
    return rows.filter(to_phone=person.phone) if person.phone else rows.none()


def _texts(person: DataSubject) -> Any:
    rows = Text.objects.of(person.organization_id)
    return rows.filter(Q(to_phone=person.phone) | Q(from_phone=person.phone)) if person.phone else rows.none()


def _inbound(person: DataSubject) -> Any:
    rows = InboundCall.objects.of(person.organization_id)
    return rows.filter(from_phone=person.phone) if person.phone else rows.none()


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the person's calls, texts and opt-outs for an export, by kind."""
    provider_events = CallEvent.objects.filter(call__in=_calls(person))
    opt_outs = OptOut.objects.of(person.organization_id).filter(phone=person.phone or "-")
    return {
        "calls": personal_data.as_rows(_calls(person)),
        "provider_events": personal_data.as_rows(provider_events),
        "texts": personal_data.as_rows(_texts(person)),
        "inbound_calls": personal_data.as_rows(_inbound(person)),
        "opt_outs": personal_data.as_rows(opt_outs),
    }


def blocked_by(person: DataSubject) -> list[str]:
    """Return why the person's data cannot be erased now; empty if it can."""
    calls = _calls(person).filter(ended_at=None).exists() or _inbound(person).filter(ended_at=None).exists()
    texts = _texts(person).filter(ended_at=None).exists()
    return ["A call or text to them is in progress. Try again in a few minutes."] if calls or texts else []


def traces(person: DataSubject) -> list[EventReference]:
    """Return the calls and texts whose events mention the person."""
    return [
        EventReference("call", list(_calls(person).values_list("pk", flat=True))),
        EventReference("text", list(_texts(person).values_list("pk", flat=True))),
    ]


def erase(person: DataSubject) -> int:
    """Erase the person's numbers and texts, and return how many rows changed."""
    CallEvent.objects.filter(call__in=_calls(person)).update(payload={})
    count = _texts(person).filter(from_phone=person.phone).update(from_phone="", body="")
    count += _texts(person).update(to_phone="", body="", context={})
    count += _inbound(person).update(from_phone="")
    count += _calls(person).update(to_phone="", context={})
    return count


PART = PersonalDataHandler(rows, erase, traces, blocked_by, keeps=("telephony.OptOut", "capacity.OutboundNumber"))
