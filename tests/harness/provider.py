"""Webhooks about one call as the provider sends them, signed: for tests that choose their order."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode

import pytest
import requests
from django.conf import settings
from twilio.request_validator import RequestValidator

from dispatch.core import fault_injection
from dispatch.telephony.models import Call
from dispatch.telephony.services.report_groups import Report
from tests.harness import grouped_reports
from tests.harness.grouped_reports import FORM, FORM_FOR_DJANGO
from tests.phones import Simulator


class Signed(NamedTuple):
    """A request that the account has signed."""

    url: str
    fields: dict[str, str]
    headers: dict[str, str]

    def post(self) -> requests.Response:
        return requests.post(self.url, data=self.fields, headers=self.headers, timeout=60)

    def post_to_django(self) -> requests.Response:
        """Send it such that Django handles it, as if there were no groups."""
        headers = {**self.headers, "Content-Type": FORM_FOR_DJANGO}
        return requests.post(self.url, data=urlencode(self.fields), headers=headers, timeout=60)

    def parsed(self) -> Report:
        """Return what the route of groups makes of it."""
        path = self.url.removeprefix(settings.PUBLIC_BASE_URL)
        headers = {"Content-Type": FORM, **self.headers}
        return grouped_reports.Signed(path, urlencode(self.fields).encode(), headers).parsed()


def signed(sim: Simulator, call: Call, kind: str, **form: str) -> Signed:
    """The webhook of this kind about a call that the provider has taken."""
    fields = {"CallSid": str(call.sid), "AccountSid": sim.account_sid, **form}
    url = f"{settings.PUBLIC_BASE_URL}/telephony/twilio/calls/{call.pk}/{kind}"
    signature = RequestValidator(sim.auth_token).compute_signature(url, fields)
    return Signed(url, fields, {"X-Twilio-Signature": signature})


def key_pressed(sim: Simulator, call: Call, key: str) -> Signed:
    return signed(sim, call, f"gather?step=1&keys={key}", CallStatus="in-progress", Digits=key)


def press(sim: Simulator, call: Call, key: str) -> requests.Response:
    """Post the key that was pressed."""
    return key_pressed(sim, call, key).post()


def end(sim: Simulator, call: Call) -> requests.Response:
    """Report that the call is over."""
    more = {"CallStatus": "completed", "SequenceNumber": "9", "CallDuration": "12"}
    return signed(sim, call, "status", **more).post()


def record_only(sim: Simulator, call: Call, key: str) -> None:
    """Post the key; it is stored, and the request fails before anything acts on it."""

    def fail() -> None:
        raise RuntimeError("the process has trouble")

    with fault_injection.arm_crash_point("telephony.webhook.committed", fail):
        assert key_pressed(sim, call, key).post_to_django().status_code == 500
    if Call.objects.get(pk=call.pk).keys_pressed != key:
        pytest.fail("the key was not stored")
