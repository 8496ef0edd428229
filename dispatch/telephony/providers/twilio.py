"""Twilio, on its official SDK. `twilio.rest` is heavy and imported when a client is first needed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import requests
import structlog
from django.conf import settings
from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

from dispatch.capacity.models import ProviderAccount
from dispatch.telephony.providers import twilio_words as words
from dispatch.telephony.providers.base import (
    CallGone,
    Hook,
    Incoming,
    ListedText,
    Order,
    Outcome,
    Provider,
    ProviderTrouble,
    RateLimited,
    Rejected,
    Report,
    Submitted,
    TextReport,
    Unknown,
)
from dispatch.telephony.purposes import Prompt
from dispatch.telephony.rules import ENDS, Listed

if TYPE_CHECKING:
    from twilio.rest import Client

log = structlog.get_logger(__name__)

SIGNATURE = "X-Twilio-Signature"
STATUS_EVENTS = ["initiated", "ringing", "answered", "completed"]
CONNECT_RETRY_S = 2.0

T = TypeVar("T")


def make(account: ProviderAccount) -> Twilio:
    return Twilio(account)


class Twilio(Provider):
    """One account. Holds a connection pool, so one per thread."""

    def __init__(self, account: ProviderAccount) -> None:
        self._sid = account.account_sid
        self._tokens = [token for token in (account.auth_token, account.previous_auth_token) if token]
        self._token = account.auth_token
        self._made: Client | None = None

    # --- asking

    def place(self, order: Order) -> Outcome:
        return self._create(
            lambda client: client.calls.create(
                to=order.to,
                from_=order.from_,
                url=order.voice_url,
                method="POST",
                status_callback=order.status_url,
                status_callback_method="POST",
                status_callback_event=STATUS_EVENTS,
                timeout=order.ring_timeout_s,
                time_limit=order.time_limit_s,
                **({"machine_detection": "Enable"} if order.detect_machine else {}),
            ),
            order.leave_within_s,
        )

    def send_text(
        self, to: str, from_: str, body: str, status_url: str = "", leave_within_s: float | None = None
    ) -> Outcome:
        extra = {"status_callback": status_url} if status_url else {}
        return self._create(
            lambda client: client.messages.create(to=to, from_=from_, body=body, **extra), leave_within_s
        )

    def find_texts(self, to: str, from_: str) -> list[ListedText]:
        listed = self._ask(lambda client: client.messages.list(to=to, from_=from_, limit=50, page_size=50))
        ahead = self._http().server_behind()
        return [
            ListedText(
                text.sid,
                words.TEXT_STATUS.get(str(text.status), "submitted"),
                text.date_created + ahead if isinstance(text.date_created, datetime) else None,
                text.body or "",
            )
            for text in listed
        ]

    def hang_up(self, sid: str) -> Report:
        def end(client: Client) -> Any:
            from twilio.base.exceptions import TwilioRestException

            try:
                # "completed" ends a call that rings or is queued too; "canceled" would leave an answered one
                return client.calls(sid).update(status="completed")
            except TwilioRestException as error:
                if error.code != words.NOT_IN_PROGRESS:
                    raise
                return client.calls(sid).fetch()

        return _report(self._ask(end))

    def fetch(self, sid: str) -> Report:
        return _report(self._ask(lambda client: client.calls(sid).fetch()))

    def find_calls(self, to: str, from_: str) -> list[Listed]:
        # StartTime is not given: a call that has not begun has none
        listed = self._ask(lambda client: client.calls.list(to=to, from_=from_, limit=50, page_size=50))
        ahead = self._http().server_behind()
        return [
            Listed(
                call.sid,
                words.STATUS.get(call.status, "submitted"),
                call.date_created + ahead if isinstance(call.date_created, datetime) else None,
            )
            for call in listed
        ]

    def about(self, code: str) -> str:
        return words.kind_of(words.whole(code) or 0)

    # --- being asked

    def verify(self, url: str, form: Any, headers: Mapping[str, str]) -> bool:
        from twilio.request_validator import RequestValidator

        given = headers.get(SIGNATURE)
        if not given:
            return False
        return any(RequestValidator(token).validate(url, form, given) for token in self._tokens)

    def parse(self, kind: str, step: int, form: Mapping[str, str]) -> Hook:
        payload = _clean(form)
        sequence = words.whole(payload.get("SequenceNumber"))
        if kind == "status" and sequence is not None:
            key = f"#{sequence}"
        else:
            body = json.dumps([kind, step, sorted(payload.items())])
            key = f"{kind}:{hashlib.sha256(body.encode()).hexdigest()[:40]}"
        return Hook(
            sid=payload.get("CallSid", "")[:64],
            status=words.STATUS.get(payload.get("CallStatus", "")),
            duration_s=words.whole(payload.get("CallDuration")),
            answered_by=payload.get("AnsweredBy", "")[:32],
            error_code=payload.get("ErrorCode", "")[:16],
            error_message=payload.get("ErrorMessage", "")[:255],
            key=key,
            kind=kind,
            account_sid=payload.get("AccountSid", ""),
            sequence=sequence,
            digits=payload.get("Digits", ""),
            payload=payload,
        )

    def parse_text(self, form: Mapping[str, str]) -> TextReport:
        said = _clean(form)
        return TextReport(
            sid=said.get("MessageSid", "")[:64],
            status=words.TEXT_STATUS.get(said.get("MessageStatus", "")),
            account_sid=said.get("AccountSid", ""),
            error_code=said.get("ErrorCode", "")[:16],
            error_message=said.get("ErrorMessage", "")[:255],
        )

    def parse_incoming(self, form: Mapping[str, str]) -> Incoming:
        said = _clean(form)
        sender = said.get("From", "")[:32]
        return Incoming(
            sid=(said.get("MessageSid") or said.get("CallSid", ""))[:64],
            account_sid=said.get("AccountSid", ""),
            to=said.get("To", ""),
            from_="" if sender in words.WITHHELD or ("MessageSid" not in said and sender[:1] != "+") else sender,
            body=form.get("Body", "").replace("\0", "")[:1600],
            keys=said.get("Digits", ""),
            ended=words.STATUS.get(said.get("CallStatus", "")) in ENDS,
            duration_s=words.whole(said.get("CallDuration")),
        )

    def render_nothing(self) -> tuple[bytes, str]:
        return b'<?xml version="1.0" encoding="UTF-8"?><Response/>', "text/xml; charset=utf-8"

    def render(self, prompt: Prompt, answer_url: str) -> tuple[bytes, str]:
        from twilio.twiml.voice_response import Gather, VoiceResponse

        document = VoiceResponse()
        sentences = [sentence for text in prompt.say if (sentence := words.sayable(text))]
        if prompt.keys:
            for _ in range(max(1, prompt.times)):
                gather = Gather(
                    input="dtmf",
                    num_digits=1,
                    finish_on_key="",
                    timeout=prompt.wait_s,
                    action=answer_url,
                    method="POST",
                )
                for sentence in sentences:
                    gather.say(sentence)
                document.append(gather)
        else:
            for sentence in sentences:
                document.say(sentence)
        document.hangup()
        return document.to_xml().encode(), "text/xml; charset=utf-8"

    def render_hand_over(self, url: str) -> tuple[bytes, str]:
        from twilio.twiml.voice_response import VoiceResponse

        document = VoiceResponse()
        document.redirect(url, method="POST")
        return document.to_xml().encode(), "text/xml; charset=utf-8"

    # --- the SDK

    def _client(self) -> Client:
        if self._made is None:
            from twilio.rest import Client

            from dispatch.telephony.providers.twilio_http import PooledHttp

            local = settings.SIMULATOR_URL if settings.DEVELOPMENT else ""
            http = PooledHttp(trust_env=not local)
            client = Client(self._sid, self._token, http_client=http)
            if local:
                client.api.base_url = local
            self._made = client
        return self._made

    def _http(self) -> Any:
        return self._client().http_client

    def _create(self, make_it: Callable[[Client], Any], leave_within_s: float | None = None) -> Outcome:
        """A request that must not be made twice, as a typed outcome."""
        from twilio.base.exceptions import TwilioException

        try:
            if not self._token:
                return Rejected(False, "20003", "the account has no token", "configuration")
            client = self._client()
            self._http().connect_s = min(
                leave_within_s or settings.PROVIDER_TIMEOUT_S, settings.PROVIDER_TIMEOUT_S
            )
        except Exception as error:  # nothing was sent
            log.exception("no client for the provider")
            return Rejected(False, "", str(error)[:255], "configuration")
        try:
            made = make_it(client)
            return Submitted(made.sid) if made.sid else Unknown("an answer without an id")
        except TwilioException as error:
            return words.outcome_of_error(error, self._http().retry_after_s())
        except requests.RequestException as error:
            if _never_left(error):
                return RateLimited(CONNECT_RETRY_S, "the provider could not be reached")
            return Unknown(f"{type(error).__name__}")
        except Exception as error:  # an answer that the SDK could not read
            log.exception("unreadable answer of the provider")
            return Unknown(f"{type(error).__name__}")

    def _ask(self, question: Callable[[Client], T]) -> T:
        """A request that may be repeated. Raises CallGone, ProviderTrouble."""
        from twilio.base.exceptions import TwilioException

        try:
            return question(self._client())
        except TwilioException as error:
            if getattr(error, "status", None) == 404:
                raise CallGone(str(error)) from error
            raise ProviderTrouble(f"{getattr(error, 'status', '')} {getattr(error, 'code', '')}") from error
        except Exception as error:  # the network, or an answer that the SDK could not read
            raise ProviderTrouble(type(error).__name__) from error


def _clean(form: Mapping[str, str]) -> dict[str, str]:
    """The fields without what no row can hold."""
    return {name[:64]: value.replace("\0", "")[:1000] for name, value in form.items() if "\0" not in name}


def _report(call: Any) -> Report:
    return Report(
        sid=call.sid,
        status=words.STATUS.get(str(call.status)),
        duration_s=words.whole(call.duration),
        answered_by=(call.answered_by or "")[:32],
    )


def _never_left(error: requests.RequestException) -> bool:
    """Whether the connection was never made, so that the request cannot have been processed."""
    if isinstance(error, requests.ConnectTimeout):
        return True
    cause = error.args[0] if error.args else None
    return isinstance(getattr(cause, "reason", cause), NewConnectionError | ConnectTimeoutError)
