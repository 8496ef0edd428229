"""Read requests: authenticate, and check form fields against what the provider accepts."""

from __future__ import annotations

import base64
import binascii
import hmac
from typing import TYPE_CHECKING, Any

from aiohttp import web
from multidict import MultiDict

from .calls import Order
from .errors import ApiError
from .twiml import METHODS
from .webhooks import url_fault

if TYPE_CHECKING:
    from .world import Account

WORLD: web.AppKey[Any] = web.AppKey("world")

DEFAULT_REGION = "us1"
EVENTS = {"initiated", "ringing", "answered", "completed"}
CREATE = {
    *("To", "From", "Url", "Method", "Twiml", "FallbackUrl", "FallbackMethod", "StatusCallback"),
    *("StatusCallbackMethod", "StatusCallbackEvent", "SendDigits", "Timeout", "TimeLimit", "MachineDetection"),
    *("MachineDetectionTimeout", "MachineDetectionSpeechThreshold", "MachineDetectionSpeechEndThreshold"),
    *("MachineDetectionSilenceTimeout", "AsyncAmd", "AsyncAmdStatusCallback", "AsyncAmdStatusCallbackMethod"),
    *("Record", "CallReason", "CallerId", "Trim", "ClientNotificationUrl", "RecordingChannels", "RecordingTrack"),
}
# Parameters that the provider has and that would change the result. Ignoring them silently would be wrong.
NOT_SIMULATED = {
    *("ApplicationSid", "Byoc", "CallToken", "Passports"),
    *("RecordingStatusCallback", "RecordingStatusCallbackMethod", "RecordingStatusCallbackEvent"),
    *("RecordingConfigurationId", "SipAuthUsername", "SipAuthPassword"),
}


def authenticate(request: web.Request, *, active: bool = True) -> Account:
    """Return the account of the path if the credentials are its own.

    Raise ApiError 20003, and 20005 if it is not active and `active` is required.
    """
    accounts = request.app[WORLD].accounts
    scheme, _, encoded = request.headers.get("Authorization", "").partition(" ")
    try:
        user, _, token = base64.b64decode(encoded, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        user, token = "", ""
    account = accounts.get(request.match_info["account"])
    known = False
    if account is not None and account.config.region == region_of(request.host):
        config = account.config
        is_key = user in config.api_keys and active  # a standard key may do everything but read the account
        expected = config.api_keys[user] if is_key else config.auth_token
        known = (is_key or user == config.sid) and hmac.compare_digest(expected.encode(), token.encode())
    if scheme != "Basic" or not known or account is None:
        raise ApiError(20003, headers={"WWW-Authenticate": 'Basic realm="Twilio API"'})
    if active and not account.config.is_active:
        raise ApiError(20005)
    return account


def region_of(host: str) -> str:
    """Return the region in a host name, such as ie1 in `api.dublin.ie1.twilio.com` and `api.ie1.twilio.com`."""
    labels = host.partition(":")[0].split(".")
    if labels[0] == "api" and labels[-2:] == ["twilio", "com"] and len(labels) > 3:
        return labels[-3]
    return DEFAULT_REGION


def known_only(names: list[str], known: set[str]) -> None:
    """Raise ApiError 20001 for a parameter that the provider does not have, or that is not simulated."""
    for name in names:
        if name in NOT_SIMULATED:
            raise ApiError(20001, f"{name} is not simulated")
        if name not in known:
            raise ApiError(20001, f"unknown parameter {name!r}")


class Form:
    """Read a form body. Raise ApiError for an unknown field or an invalid value."""

    def __init__(self, data: MultiDict[str], known: set[str], allow_remote: bool) -> None:
        known_only(list(data), known)
        self._data = data
        self._allow_remote = allow_remote

    @classmethod
    async def read(cls, request: web.Request, known: set[str]) -> Form:
        if request.content_type != "application/x-www-form-urlencoded":
            raise ApiError(20001, f"the body must be a form, not {request.content_type!r}")
        posted = await request.post()
        data = MultiDict((key, value) for key, value in posted.items() if isinstance(value, str))
        return cls(data, known, request.app[WORLD].webhooks.allow_remote)

    def text(self, name: str, default: str = "") -> str:
        values = self._data.getall(name, [])
        if len(values) > 1:
            raise ApiError(20001, f"{name} is given {len(values)} times")
        return values[0] if values else default

    def many(self, name: str) -> list[str]:
        return [part for value in self._data.getall(name, []) for part in value.split()]

    def method(self, name: str) -> str:
        value = self.text(name, "POST").upper()
        if value not in METHODS:
            raise ApiError(20001, f"{name}={value!r} is neither GET nor POST")
        return value

    def url(self, name: str, code: int = 21205) -> str:
        value = self.text(name)
        fault = url_fault(value, self._allow_remote) if value else ""
        if fault:
            raise ApiError(code, f"{name}: {fault}")
        return value

    def whole(self, name: str, default: int, low: int, high: int) -> int:
        value = self.text(name, str(default))
        if not value.isdigit() or not low <= int(value) <= high:
            raise ApiError(20001, f"{name}={value!r} is not a whole number within {low} and {high}")
        return int(value)

    def one_of(self, name: str, allowed: set[str]) -> str:
        value = self.text(name)
        if value and value not in allowed:
            raise ApiError(20001, f"{name}={value!r} is not of {sorted(allowed)}")
        return value


def order_from(form: Form) -> Order:
    """Parse the create request as an Order. Numbers are not checked: `rest.check_numbers` needs the account."""
    to, from_ = form.text("To"), form.text("From")
    if not to:
        raise ApiError(21201)
    if not from_:
        raise ApiError(21213)
    url, twiml = form.url("Url"), form.text("Twiml")
    if not url and not twiml:
        raise ApiError(21205, "neither Url nor Twiml is given")
    if len(twiml) > 4000:
        raise ApiError(20001, "Twiml is longer than 4000 characters")
    if form.text("Record", "false").lower() != "false":
        raise ApiError(20001, "Record=true is not simulated")
    events = form.many("StatusCallbackEvent")
    if set(events) - EVENTS:
        raise ApiError(21626, f"{sorted(set(events) - EVENTS)}")
    digits = form.text("SendDigits")
    if len(digits) > 32 or set(digits) - set("0123456789ABCD#*wW"):
        raise ApiError(20001, f"SendDigits={digits!r}")
    return Order(
        to=to,
        from_=from_,
        url=url,
        method=form.method("Method"),
        twiml="" if url else twiml,
        fallback_url=form.url("FallbackUrl"),
        fallback_method=form.method("FallbackMethod"),
        status_callback=form.url("StatusCallback", 21609),
        status_callback_method=form.method("StatusCallbackMethod"),
        events=frozenset(events) or frozenset({"completed"}),
        timeout=form.whole("Timeout", 60, 1, 600),
        time_limit=form.whole("TimeLimit", 14_400, 1, 86_400),
        # The provider ignores detection when digits are to be sent.
        machine_detection="" if digits else form.one_of("MachineDetection", {"Enable", "DetectMessageEnd"}),
        detects_in_background=form.one_of("AsyncAmd", {"true", "false"}) == "true",
        detection_callback=form.url("AsyncAmdStatusCallback"),
        detection_callback_method=form.method("AsyncAmdStatusCallbackMethod"),
        send_digits=digits,
    )
