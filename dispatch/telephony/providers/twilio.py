"""Adapt Twilio, with its official SDK; only calls are requested without it (`twilio_calls`).

`twilio.rest` is slow to import, so it is imported on first use.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import requests
import structlog
from django.conf import settings

from dispatch.capacity.models import ProviderAccount
from dispatch.core.runtime import request_loop
from dispatch.telephony.handlers import AgentConnection, Connection, VoicePrompt
from dispatch.telephony.providers import twilio_codes as codes
from dispatch.telephony.providers import twilio_connections, twilio_signatures, twilio_speech
from dispatch.telephony.providers.backoff import backoff
from dispatch.telephony.providers.base import (
    STEP,
    AccountInfo,
    AgentUrls,
    CallGone,
    CallRequest,
    IncomingWebhook,
    LegUrls,
    ListedText,
    Outcome,
    Price,
    PriceRequest,
    Provider,
    ProviderError,
    RateLimited,
    Rejected,
    StatusReport,
    Submitted,
    TextReport,
    TextRequest,
    TooManyRequests,
    Unknown,
    WebhookEvent,
)
from dispatch.telephony.providers.connections import proxy_of
from dispatch.telephony.providers.twilio_calls import CONNECT_RETRY_S, CallsEndpoint, server_of
from dispatch.telephony.providers.twilio_prices import fetch_prices
from dispatch.telephony.rules import ENDS, ListedCall

if TYPE_CHECKING:
    from twilio.rest import Client

log = structlog.get_logger(__name__)

SIGNATURE = "X-Twilio-Signature"
# Fields of webhooks that may be longer than 1000 characters.
LONG_FIELDS = {"HandoffData": 8000}
# The provider creates the legs of a connection itself, so the first report is their creation.
LEG_EVENTS = ["initiated", "ringing", "answered", "completed"]
NO_TOKEN = Rejected(False, "20003", "the account has no token", "configuration", True)
NO_CALL = "CA" + "0" * 32
# How long a text may wait in Twilio's queue (seconds): what Twilio accepts.
MIN_VALIDITY_S, MAX_VALIDITY_S = 5, 36_000
# Texts of trial accounts begin with it.
TRIAL_PREFIX = "Sent from your Twilio trial account - "

T = TypeVar("T")


def make(account: ProviderAccount) -> Twilio:
    """Return a client of the account."""
    return Twilio(account)


class Twilio(Provider):
    """A client of one Twilio account."""

    is_async = True
    has_prices = True

    def __init__(self, account: ProviderAccount) -> None:
        self._sid = account.account_sid
        self._tokens = [token for token in (account.auth_token, account.previous_auth_token) if token]
        self._token = account.auth_token
        self._key = (account.api_key_sid, account.api_key_secret) if account.api_key_sid else None
        self._region, self._edge = account.region, account.edge
        self.max_requests = settings.PROVIDER_ACCOUNT_REQUESTS
        self._made: Client | None = None
        self._calls: CallsEndpoint | None = None

    # --- requests to the provider

    def place(self, order: CallRequest) -> Outcome:
        return request_loop.run(self.place_async(order))

    async def place_async(self, order: CallRequest) -> Outcome:
        try:
            if not self._token:
                return NO_TOKEN
            if self._calls is None:
                self._calls = self._calls_endpoint()
        except Exception as error:  # nothing was sent
            log.exception("provider_client_failed")
            return Rejected(False, "", str(error)[:255], "configuration", True)
        try:
            return await self._calls.create(order, order.leave_within_s)
        except Exception as error:
            log.exception("provider_response_unreadable")
            return Unknown(f"{type(error).__name__}")

    def send_text(self, order: TextRequest) -> Outcome:
        extra: dict[str, Any] = {"status_callback": order.status_url} if order.status_url else {}
        if order.service:
            extra["messaging_service_sid"] = order.service
        if order.valid_s is not None:
            extra["validity_period"] = min(max(order.valid_s, MIN_VALIDITY_S), MAX_VALIDITY_S)
        return self._create(
            lambda client: client.messages.create(to=order.to, from_=order.from_, body=order.body, **extra),
            order.leave_within_s,
        )

    def find_texts(self, to: str, from_: str) -> list[ListedText]:
        listed = self._run_request(lambda client: client.messages.list(to=to, from_=from_, limit=50, page_size=50))
        clock_offset = self._http().server_behind()
        return [
            ListedText(
                text.sid,
                codes.TEXT_STATUS.get(str(text.status), "submitted"),
                text.date_created + clock_offset if isinstance(text.date_created, datetime) else None,
                (text.body or "").removeprefix(TRIAL_PREFIX),
            )
            for text in listed
        ]

    def hang_up(self, sid: str) -> StatusReport:
        def end(client: Client) -> Any:
            from twilio.base.exceptions import TwilioRestException

            try:
                # "completed" also ends a ringing or queued call; "canceled" would not end an answered one
                return client.calls(sid).update(status="completed")
            except TwilioRestException as error:
                if error.code != codes.NOT_IN_PROGRESS:
                    raise
                return client.calls(sid).fetch()

        return _report(self._run_request(end))

    def repeat_prompt(self, sid: str, voice_url: str) -> None:
        self._run_request(lambda client: client.calls(sid).update(url=voice_url, method="POST"))

    def fetch(self, sid: str) -> StatusReport:
        return _report(self._run_request(lambda client: client.calls(sid).fetch()))

    def find_calls(self, to: str, from_: str) -> list[ListedCall]:
        # no filter by StartTime: a call that has not started has no StartTime
        listed = self._run_request(lambda client: client.calls.list(to=to, from_=from_, limit=50, page_size=50))
        clock_offset = self._http().server_behind()
        return [
            ListedCall(
                call.sid,
                codes.STATUS.get(call.status, "submitted"),
                call.date_created + clock_offset if isinstance(call.date_created, datetime) else None,
            )
            for call in listed
        ]

    def fetch_prices(self, wanted: PriceRequest) -> dict[str, Price]:
        return self._run_request(lambda client: fetch_prices(client, wanted, self._http().server_behind))

    def fetch_account(self) -> AccountInfo | Rejected | Unknown | None:
        from twilio.base.exceptions import TwilioException

        try:
            if not self._token:
                return NO_TOKEN
            # a standard API key may not read the account: that takes the token, and the key is tried separately
            client = self._client() if self._key is None else self._make_client((self._sid, self._token))
            account = client.api.v2010.accounts(self._sid).fetch()
            if self._key is not None:
                self._try_key()
        except TwilioException as error:
            outcome = codes.outcome_of_error(error, None)
            return (
                outcome if isinstance(outcome, Rejected | Unknown) else None
            )  # rate limited: the provider does respond
        except Exception as error:  # a network error, or a response that the SDK can't parse
            return Unknown(type(error).__name__)
        status = str(account.status)
        return AccountInfo(str(account.friendly_name or ""), status, str(account.type or ""), status == "active")

    def _try_key(self) -> None:
        """Make a request with the API key that only valid credentials get a 404 for.

        Raises TwilioException. (The SDK drops the status of a failed listing.)
        """
        from twilio.base.exceptions import TwilioRestException

        try:
            self._client().calls(NO_CALL).fetch()
        except TwilioRestException as error:
            if error.status != 404:
                raise

    def about(self, code: str) -> str:
        return codes.kind_of_text(code)

    def is_sure(self, code: str) -> bool:
        return not code.startswith(codes.SIP)

    def meaning_of(self, code: str) -> str:
        return codes.meaning_of(codes.parse_int(code) or 0)

    # --- webhooks from the provider

    def verify(self, url: str, form: Any, headers: Mapping[str, str]) -> bool:
        signature = headers.get(SIGNATURE)
        if not signature:
            return False
        return any(twilio_signatures.is_valid(token, url, form, signature) for token in self._tokens)

    def is_signed_with(self, token: str, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> bool:
        signature = headers.get(SIGNATURE, "")
        return hmac.compare_digest(twilio_signatures.compute(token, url, form).encode(), signature.encode())

    def is_signed(self, headers: Mapping[str, str]) -> bool:
        return bool(headers.get(SIGNATURE))

    def names_account(self, form: Mapping[str, str]) -> bool:
        return form.get("AccountSid", "") == self._sid

    def parse(self, kind: str, step: int, form: Mapping[str, str]) -> WebhookEvent:
        payload = _clean(form)
        sequence = codes.parse_int(payload.get("SequenceNumber"))
        if kind == "status" and sequence is not None:
            key = f"#{sequence}"
        else:
            body = json.dumps([kind, step, sorted(payload.items())])
            key = f"{kind}:{hashlib.sha256(body.encode()).hexdigest()[:40]}"
        code, message = payload.get("ErrorCode", ""), payload.get("ErrorMessage", "")
        if kind == "agent":  # the agent's error is not the call's; and a later attempt needs the step
            code, message, payload = "", "", {**payload, STEP: str(step)}
        elif not code:
            code, message = codes.sip_error(payload.get("CallStatus", ""), payload.get("SipResponseCode", ""))
        return WebhookEvent(
            sid=payload.get("CallSid", "")[:64],
            status=codes.STATUS.get(payload.get("CallStatus", "")),
            duration_s=codes.parse_int(payload.get("CallDuration")),
            answered_by=payload.get("AnsweredBy", "")[:32],
            error_code=code[:16],
            error_message=message[:255],
            key=key,
            kind=kind,
            account_sid=payload.get("AccountSid", ""),
            sequence=sequence,
            digits=payload.get("Digits", ""),
            is_connected=twilio_connections.is_connected(kind, payload),
            handoff=payload.get("HandoffData", ""),
            is_stream=kind == "agent" and "SessionId" not in payload,
            payload=payload,
        )

    def parse_text(self, form: Mapping[str, str]) -> TextReport:
        fields = _clean(form)
        return TextReport(
            sid=fields.get("MessageSid", "")[:64],
            status=codes.TEXT_STATUS.get(fields.get("MessageStatus", "")),
            account_sid=fields.get("AccountSid", ""),
            error_code=fields.get("ErrorCode", "")[:16],
            error_message=fields.get("ErrorMessage", "")[:255],
        )

    def parse_incoming(self, form: Mapping[str, str]) -> IncomingWebhook:
        fields = _clean(form)
        sender = fields.get("From", "")[:32]
        return IncomingWebhook(
            sid=(fields.get("MessageSid") or fields.get("CallSid", ""))[:64],
            account_sid=fields.get("AccountSid", ""),
            to=fields.get("To", ""),
            from_="" if sender in codes.WITHHELD or ("MessageSid" not in fields and sender[:1] != "+") else sender,
            body=form.get("Body", "").replace("\0", "")[:1600],
            keys=fields.get("Digits", ""),
            ended=codes.STATUS.get(fields.get("CallStatus", "")) in ENDS,
            duration_s=codes.parse_int(fields.get("CallDuration")),
            attestation=fields.get("StirVerstat", "")[:64],
        )

    def render_nothing(self) -> tuple[bytes, str]:
        return b'<?xml version="1.0" encoding="UTF-8"?><Response/>', "text/xml; charset=utf-8"

    def render(self, prompt: VoicePrompt, answer_url: str) -> tuple[bytes, str]:
        return twilio_speech.render(prompt, answer_url).encode(), "text/xml; charset=utf-8"

    def render_connection(
        self, connection: Connection, from_phone: str, legs: Sequence[LegUrls], result_url: str
    ) -> tuple[bytes, str]:
        return twilio_connections.render_dial(connection, from_phone, legs, result_url, LEG_EVENTS)

    def render_agent(self, agent: AgentConnection, name: str, urls: AgentUrls) -> tuple[bytes, str]:
        return twilio_connections.render_agent(agent, name, urls)

    def render_hand_over(self, url: str) -> tuple[bytes, str]:
        from twilio.twiml.voice_response import VoiceResponse

        document = VoiceResponse()
        document.redirect(url, method="POST")
        return document.to_xml().encode(), "text/xml; charset=utf-8"

    def _calls_endpoint(self) -> CallsEndpoint:
        server = server_of(self._region, self._edge)
        credentials = self._key or (self._sid, self._token)
        if settings.DEVELOPMENT and settings.SIMULATOR_URL:
            host = urlsplit(server).netloc
            return CallsEndpoint(self._simulator_url(), self._sid, credentials, host=host)
        return CallsEndpoint(server, self._sid, credentials, proxy=proxy_of(server))

    def _simulator_url(self) -> str:
        return settings.SIMULATOR_URL

    # --- the SDK

    def _client(self) -> Client:
        if self._made is None:
            self._made = self._make_client(self._key or (self._sid, self._token))
        return self._made

    def _make_client(self, credentials: tuple[str, str]) -> Client:
        from twilio.rest import Client

        from dispatch.telephony.providers.twilio_http import PooledHttp

        local = settings.SIMULATOR_URL if settings.DEVELOPMENT else ""
        http = PooledHttp(trust_env=not local)
        place = {"region": self._region or None, "edge": self._edge or None}
        client = Client(*credentials, account_sid=self._sid, http_client=http, **place)
        if local:
            http.host = urlsplit(client.get_hostname(client.api.base_url)).netloc
            client.region = client.edge = None
            client.api.base_url = local
        return client

    def close(self) -> None:
        if self._made is not None and (session := self._http().session) is not None:
            session.close()

    def _http(self) -> Any:
        return self._client().http_client

    def _create(self, create: Callable[[Client], Any], leave_within_s: float | None = None) -> Outcome:
        """Make a request that must not be repeated, and return its typed outcome."""
        from twilio.base.exceptions import TwilioException

        try:
            if not self._token:
                return NO_TOKEN
            client = self._client()
            self._http().limit_connect_time(
                min(leave_within_s or settings.PROVIDER_TIMEOUT_S, settings.PROVIDER_TIMEOUT_S)
            )
        except Exception as error:  # nothing was sent
            log.exception("provider_client_failed")
            return Rejected(False, "", str(error)[:255], "configuration", True)
        try:
            resource = create(client)
            backoff.reset(self._sid)
            return Submitted(resource.sid) if resource.sid else Unknown("a response without an id")
        except TwilioException as error:
            retry_after_s = self._http().retry_after_s()
            if retry_after_s is None and codes.is_rate_limit(error):
                retry_after_s = backoff.wait_s(self._sid)
            return codes.outcome_of_error(error, retry_after_s)
        except requests.RequestException as error:
            from dispatch.telephony.providers.twilio_http import was_never_sent

            if was_never_sent(error):
                return RateLimited(CONNECT_RETRY_S, "the provider could not be reached", is_unreachable=True)
            return Unknown(f"{type(error).__name__}")
        except Exception as error:  # a response that the SDK can't parse
            log.exception("provider_response_unreadable")
            return Unknown(f"{type(error).__name__}")

    def _run_request(self, request: Callable[[Client], T]) -> T:
        """Make a repeatable request. Raises CallGone and ProviderError."""
        from twilio.base.exceptions import TwilioException

        try:
            return request(self._client())
        except TwilioException as error:
            if getattr(error, "status", None) == 404:
                raise CallGone(str(error)) from error
            if codes.is_rate_limit(error):
                wait_s = self._http().retry_after_s()
                wait_s = backoff.wait_s(self._sid) if wait_s is None else wait_s
                raise TooManyRequests(codes.describe_error(error), wait_s) from error
            raise ProviderError(codes.describe_error(error)) from error
        except Exception as error:  # a network error, or a response that the SDK can't parse
            raise ProviderError(type(error).__name__) from error


def _clean(form: Mapping[str, str]) -> dict[str, str]:
    """Return the form's fields, without characters that PostgreSQL can't store and cut to a maximum length."""
    return {
        name[:64]: value.replace("\0", "")[: LONG_FIELDS.get(name, 1000)]
        for name, value in form.items()
        if "\0" not in name
    }


def _report(call: Any) -> StatusReport:
    return StatusReport(
        sid=call.sid,
        status=codes.STATUS.get(str(call.status)),
        duration_s=codes.parse_int(call.duration),
        answered_by=(call.answered_by or "")[:32],
    )
