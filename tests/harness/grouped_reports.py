"""Webhooks about calls of leads, as the provider signs them: posted, or applied as one group in this thread."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import urlencode

import pytest
import requests
from django.conf import settings
from twilio.request_validator import RequestValidator

from dispatch.core import fault_injection
from dispatch.core.models import Event
from dispatch.leads.models import Lead
from dispatch.telephony import webhook_route
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.providers.base import Submitted
from dispatch.telephony.services import report_groups
from dispatch.telephony.services.bulk import RequestResult
from dispatch.telephony.services.report_groups import Applied, Report
from tests.harness.leads import Floor

FORM = "application/x-www-form-urlencoded"
# This spelling of the same type is not a plain one: Django handles such a request.
FORM_FOR_DJANGO = "application/x-www-form-urlencoded;charset=utf-8"
BEFORE_COMMIT = "telephony.reports.before_commit"
_sids = itertools.count(1)
# Fields of a call's events that differ in each run.
_VARYING = {"number", "due_at", "url", "call_back_at"}


class Signed(NamedTuple):
    """A request that the account has signed."""

    path: str
    body: bytes
    headers: dict[str, str]

    def post(self, base_url: str = "", **headers: str) -> requests.Response:
        """Send it to the application under test, or to another one."""
        url = f"{base_url or settings.PUBLIC_BASE_URL}{self.path}"
        return requests.post(url, data=self.body, headers={**self.headers, **headers}, timeout=60)

    def post_to_django(self) -> requests.Response:
        """Send it such that Django handles it, as if there were no groups."""
        return self.post(**{"Content-Type": FORM_FOR_DJANGO})

    def parsed(self) -> Report:
        """Return what the route makes of it. It must be plain."""
        headers = {"content-length": str(len(self.body)), **{name.lower(): v for name, v in self.headers.items()}}
        path, _, query = self.path.partition("?")
        scope = {
            "path": path, "query_string": query.encode(), "root_path": "",
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }  # fmt: skip
        plain = webhook_route.read_plain(scope)
        assert plain is not None
        report = webhook_route.parse_report(scope, plain, self.body)
        assert report is not None
        return report


@dataclass
class Provider:
    """The provider of a floor of leads, whose calls it has accepted."""

    floor: Floor

    def accept_calls(self, count: int) -> list[Call]:
        """Call new leads; the provider accepts each request."""
        self.floor.add_many(count)
        self.floor.promote()
        claimed = self.floor.claim(count)
        answers = [
            RequestResult(asked.call_id, asked.call, Submitted(f"CA{next(_sids):032x}")) for asked in claimed.calls
        ]
        self.floor.settle(answers)
        calls = list(Call.objects.filter(pk__in=[answer.call_id for answer in answers]).order_by("pk"))
        assert len(calls) == count
        return calls

    def sign(self, call: Call, kind: str = "status", *, token: str = "", call_id: int = 0, **form: Any) -> Signed:
        """Return a webhook about the call. A field that is None is left out."""
        fields = {"CallSid": call.sid, "AccountSid": self.floor.account.account_sid, **form}
        fields = {name: str(value) for name, value in fields.items() if value is not None}
        path = f"/telephony/twilio/calls/{call_id or call.pk}/{kind}"
        validator = RequestValidator(token or self.floor.account.auth_token)
        signature = validator.compute_signature(f"{settings.PUBLIC_BASE_URL}{path}", fields)
        headers = {"Content-Type": FORM, "X-Twilio-Signature": signature}
        return Signed(path, urlencode(fields).encode(), headers)

    def ringing(self, call: Call) -> Signed:
        return self.sign(call, CallStatus="ringing", SequenceNumber=0)

    def voice(self, call: Call, **form: Any) -> Signed:
        return self.sign(call, "voice", CallStatus="in-progress", **form)

    def key(self, call: Call, key: str, *, step: int = 1, keys: str = "123456789", **form: Any) -> Signed:
        """Return the answer to a prompt that asked for `keys`."""
        return self.sign(
            call, f"gather?step={step}&keys={keys}", **{"CallStatus": "in-progress", "Digits": key, **form}
        )

    def ended(self, call: Call, status: str = "completed", **form: Any) -> Signed:
        return self.sign(call, CallStatus=status, SequenceNumber=2, **{"CallDuration": 12, **form})


def apply(*requests_: Signed) -> list[Applied | None]:
    """Apply these as one group in this thread."""
    return report_groups.apply_group([request.parsed() for request in requests_])


def rows_of(call: Call) -> dict[str, Any]:
    """Return everything about the call and its lead that reports change, without ids and times."""
    row = Call.objects.get(pk=call.pk)
    lead = Lead.objects.get(pk=row.subject_id)
    moments = ("submitted_at", "answered_at", "ended_at", "hang_up_at", "cancel_requested_at")
    return {
        "call": {
            name: getattr(row, name)
            for name in (
                "status", "last_sequence", "duration_s", "answered_by", "keys_pressed", "error_code",
                "error_message",
            )
        },
        "is_sid_known": row.sid is not None,
        "moments": {name: getattr(row, name) is not None for name in moments},
        "reports": [(one.kind, *_plain(one.payload).items()) for one in CallEvent.objects.filter(call=row)],
        "events": events_about("call", row.pk),
        "lead": (lead.status, lead.outcome, lead.reason, lead.last_outcome, lead.attempts, lead.token),
        "lead events": events_about("lead", lead.pk),
    }  # fmt: skip


def events_about(subject: str, pk: int) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the kind, actor and data of the subject's events, without ids."""
    found = Event.objects.filter(subject_type=subject, subject_id=pk).order_by("id")
    return [(event.kind, event.actor_label, _plain(event.data)) for event in found]


def _plain(data: dict[str, Any]) -> dict[str, Any]:
    ids = {"subject_id", "call", "CallSid", *_VARYING}
    return {name: value for name, value in sorted(data.items()) if name not in ids}


def statuses(calls: Sequence[Call]) -> list[str]:
    """Return the current statuses of the calls."""
    found = dict(Call.objects.filter(pk__in=[call.pk for call in calls]).values_list("pk", "status"))
    return [found[call.pk] for call in calls]


def route() -> Any:
    """Return the route of the application under test."""
    from dispatch import asgi

    return asgi.reports


def group_sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the groups from now on."""
    sizes: list[int] = []
    apply_group = report_groups._Group.__init__

    def count(self: Any, reports: Any, failed: Any = ()) -> None:
        sizes.append(len(reports))
        apply_group(self, reports, failed)

    monkeypatch.setattr(report_groups._Group, "__init__", count)
    return sizes


@contextmanager
def hold_groups() -> Iterator[Callable[[], None]]:
    """Hold every group before its commit, until the function is called that this yields."""
    released = threading.Event()
    with fault_injection.arm_crash_point(BEFORE_COMMIT, lambda: released.wait(30)):
        try:
            yield released.set
        finally:
            released.set()
