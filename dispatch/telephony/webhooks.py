"""Serve the provider's webhooks: call answered, key pressed, status changed, text or call received.

A request without a valid signature of the call's account gets the same 403 in every case, so that nobody learns
which calls exist. An internal error returns 500, and the provider retries, as the URL asks it to.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core.db import fast_rows
from dispatch.core.db.errors import is_temporary
from dispatch.core.ids import read_id
from dispatch.telephony import providers, webhook_urls
from dispatch.telephony.errors import WrongCall
from dispatch.telephony.handlers import (
    AgentConnection,
    CallHandler,
    ConnectingHandler,
    Connection,
    Document,
    Redirect,
    VoicePrompt,
    handler_for,
)
from dispatch.telephony.models import Call, Text
from dispatch.telephony.providers.base import AgentUrls, LegUrls, Provider, WebhookEvent
from dispatch.telephony.providers.twilio_codes import parse_int
from dispatch.telephony.services import agents, inbound, keys, missed_reports, unheard_calls
from dispatch.telephony.services.call_status import receive_webhook
from dispatch.telephony.services.signatures import report_refusal
from dispatch.telephony.webhook_urls import MAX_STEPS

log = structlog.get_logger(__name__)

KINDS = ("voice", "gather", "status", "connected", "agent", "stream")
REPORTS = ("status", "stream")  # kinds whose response is not a document
SILENCE = VoicePrompt(say=())


@csrf_exempt
@require_POST
def webhook(request: HttpRequest, provider: str, call_id: int, kind: str) -> HttpResponse:
    """Handle a webhook about an outbound call.

    POST /telephony/<provider>/calls/<call id>/<voice|gather|status|connected|agent|stream>
    """
    structlog.contextvars.bind_contextvars(call=call_id)
    try:
        return _handle(request, provider, call_id, kind)
    except Exception as error:
        if is_temporary(error) and call_id < 2**63:
            missed_reports.remember_call(call_id)
        raise


def _handle(request: HttpRequest, provider: str, call_id: int, kind: str) -> HttpResponse:
    if kind not in KINDS or call_id >= 2**63:
        return reject_request()
    try:
        step = min(parse_int(request.GET.get("step")) or 0, MAX_STEPS)
        reader = _find_reader(request, provider)
        event = reader.parse(kind, step, request.POST.dict())
        call = receive_webhook(call_id, event, partial(_is_from_account, request, provider))
    except providers.UnknownProvider:
        return reject_request()
    except WrongCall:
        _report_refused(request, provider, call_id)
        return reject_request()
    _bind_subject(call)
    client = providers.for_account(call.account)
    try:
        handler = handler_for(call.purpose)
    except KeyError:
        log.error("call_handler_missing", purpose=call.purpose)
        return HttpResponse(status=204) if kind in REPORTS else _render_prompt(client, call, SILENCE, step)
    # also for a repeated webhook: at the first, the process may have died after the commit, before this line
    handler.on_status_change(call)
    if kind in REPORTS:
        return HttpResponse(status=204)
    accepted_keys = webhook_urls.decode_keys(request.GET.get("keys", ""))
    prompt = _choose_prompt(handler, call, event, step, accepted_keys)
    keys.mark_applied(call_id, event)
    return _render_prompt(client, call, prompt, step)


def _choose_prompt(
    handler: CallHandler, call: Call, event: WebhookEvent, step: int, accepted_keys: str
) -> Document:
    is_accepted_key = event.kind == "gather" and len(event.digits) == 1 and event.digits in accepted_keys
    if call.ended_at is not None or step >= MAX_STEPS:
        if is_accepted_key:  # the call is over, but the key was pressed during the call and counts
            handler.on_key(call, event.digits)
        elif event.kind == "connected":
            cast(ConnectingHandler, handler).on_connected(call, event.is_connected)
        elif event.kind == agents.AGENT:
            agents.apply_end(handler, call, event, step)
        return SILENCE
    if event.kind == agents.AGENT:
        prompt = agents.apply_end(handler, call, event, step)
        return prompt if call.cancel_requested_at is None else SILENCE
    if call.cancel_requested_at is not None:  # a pressed key still gets its result, but no new prompt
        prompt = handler.on_key(call, event.digits) if is_accepted_key else SILENCE
        return replace(prompt, keys="") if isinstance(prompt, VoicePrompt) else SILENCE
    if is_accepted_key:
        return handler.on_key(call, event.digits)
    if event.kind == "connected":
        return cast(ConnectingHandler, handler).on_connected(call, event.is_connected)
    return handler.on_answer(call)  # the call was just answered, or star or an unknown key was pressed


def _render_prompt(client: Provider, call: Call, prompt: Document, step: int) -> HttpResponse:
    if isinstance(prompt, Redirect):
        body, content_type = client.render_hand_over(prompt.url)
    elif isinstance(prompt, Connection):
        legs = [
            LegUrls(webhook_urls.webhook(leg, "voice"), webhook_urls.webhook(leg, "status")) for leg in prompt.legs
        ]
        result_url = webhook_urls.webhook(call, "connected", step + 1)
        body, content_type = client.render_connection(prompt, str(call.from_phone), legs, result_url)
    elif isinstance(prompt, AgentConnection):
        agents.limit(call.pk, prompt.limit_s)
        urls = AgentUrls(*(webhook_urls.webhook(call, kind, step + 1) for kind in ("agent", "stream")))
        body, content_type = client.render_agent(prompt, agents.name_of(call, step + 1), urls)
    else:
        body, content_type = client.render(prompt, webhook_urls.webhook(call, "gather", step + 1, prompt.keys))
    return HttpResponse(body, content_type=content_type)


def _find_reader(request: HttpRequest, provider: str) -> Provider:
    """Return a client that can parse the request. Raises UnknownProvider, and WrongCall if it is not signed."""
    reader = providers.without_account(provider)
    if not reader.is_signed(request.headers):
        raise WrongCall
    return reader


def _is_from_account(request: HttpRequest, provider: str, account: ProviderAccount) -> bool:
    """Return whether the account is the provider's and signed this request."""
    if account.provider != provider:
        return False
    return providers.for_account(account).verify(_signed_url(request), request.POST, request.headers)


def _report_refused(request: HttpRequest, provider: str, call_id: int) -> None:
    """Report a refused webhook about an existing call, unless it is signed and about another call."""
    call = fast_rows.fetch_one(Call, "t.id = %s", [call_id], "account")
    if call is None or call.account.provider != provider or _is_from_account(request, provider, call.account):
        return
    _bind_subject(call)
    client = providers.for_account(call.account)
    report_refusal(call.account, _signed_url(request), is_signed=_is_signed(client, request), call=call)


def _bind_subject(call: Call) -> None:
    """Name the call's subject, its job or lead, in every line that is logged from now on."""
    subject = {name.removesuffix("_id"): value for name, value in call.context.items()}
    structlog.contextvars.bind_contextvars(**subject)


def _signed_url(request: HttpRequest) -> str:
    return f"{settings.PUBLIC_BASE_URL}{request.get_full_path()}"


def reject_request() -> HttpResponse:
    """Return the response to every request that is not proven to come from the provider."""
    return HttpResponse("Forbidden", status=403, content_type="text/plain")


@csrf_exempt
@require_POST
def fallback(request: HttpRequest, provider: str) -> HttpResponse:
    """POST /telephony/<provider>/fallback: the apology in a call whose webhooks fail.

    It works without a database, and needs no signature, because it is the same for everyone. If its URL proves
    which call it is about, that call's person heard no prompt.
    """
    try:
        body, content_type = providers.fallback_document(provider)
    except providers.UnknownProvider:
        return reject_request()
    log.warning(
        "call_fallback_served", sid=request.POST.get("CallSid", "")[:64], error=request.POST.get("ErrorCode")
    )
    call_id = read_id(request.GET.get("call", ""))
    if call_id is not None and webhook_urls.is_fallback_of(call_id, request.GET.get("proof", "")):
        unheard_calls.record_fallback(call_id, request.POST.get("ErrorUrl", ""))
    return HttpResponse(body, content_type=content_type)


@csrf_exempt
@require_POST
def text_status(request: HttpRequest, provider: str, text_id: int) -> HttpResponse:
    """Handle a status report on an outbound text: POST /telephony/<provider>/texts/<text id>/status."""
    structlog.contextvars.bind_contextvars(text=text_id)
    if text_id >= 2**63:
        return reject_request()
    try:
        reader = _find_reader(request, provider)
        report = reader.parse_text(request.POST.dict())
        inbound.apply_text_report(text_id, report, partial(_is_from_account, request, provider))
    except providers.UnknownProvider:
        return reject_request()
    except WrongCall:
        text = fast_rows.fetch_one(Text, "t.id = %s AND r1.provider = %s", [text_id, provider], "account")
        _verified_client(request, text.account if text else None)  # reports a wrong signature
        return reject_request()
    return HttpResponse(status=204)


@csrf_exempt
@require_POST
def number_hook(request: HttpRequest, provider: str, number_id: int, kind: str) -> HttpResponse:
    """Handle a webhook about one of our numbers.

    POST /telephony/<provider>/numbers/<number id>/<sms|voice|gather|status>
    """
    number = _load_number(provider, number_id) if number_id < 2**63 else None
    client = _verified_client(request, number.account if number else None)
    handle = _NUMBER_WEBHOOKS.get(kind)
    if number is None or client is None or handle is None:
        return reject_request()
    try:
        return handle(request, number, client)
    except WrongCall:
        return reject_request()


def _load_number(provider: str, number_id: int) -> OutboundNumber | None:
    condition = "t.id = %s AND r1.provider = %s"
    return fast_rows.fetch_one(OutboundNumber, condition, [number_id, provider], "account", "organization")


def _receive_sms(request: HttpRequest, number: OutboundNumber, client: Provider) -> HttpResponse:
    inbound.receive_text(number, client.parse_incoming(request.POST.dict()))
    body, content_type = client.render_nothing()  # replies are sent like every outbound text
    return HttpResponse(body, content_type=content_type)


def _answer_call(request: HttpRequest, number: OutboundNumber, client: Provider) -> HttpResponse:
    call, prompt = inbound.answer_call(number, client.parse_incoming(request.POST.dict()))
    return _render_caller_prompt(client, number, call.pk, prompt, 0)


def _handle_key(request: HttpRequest, number: OutboundNumber, client: Provider) -> HttpResponse:
    step = min(parse_int(request.GET.get("step")) or 0, MAX_STEPS)
    call_id = parse_int(request.GET.get("call")) or 0
    accepted_keys = webhook_urls.decode_keys(request.GET.get("keys", ""))
    digits = parse_int(request.GET.get("digits")) or 1
    state = request.GET.get("state", "")[:64]
    webhook = client.parse_incoming(request.POST.dict())
    call, prompt = inbound.handle_key(call_id, number, webhook, accepted_keys, digits, state, step)
    return _render_caller_prompt(client, number, call.pk, SILENCE if step >= MAX_STEPS else prompt, step)


def _end_call(request: HttpRequest, number: OutboundNumber, client: Provider) -> HttpResponse:
    inbound.end_call(number, client.parse_incoming(request.POST.dict()))
    return HttpResponse(status=204)


_NUMBER_WEBHOOKS: dict[str, Callable[[HttpRequest, OutboundNumber, Provider], HttpResponse]] = {
    "sms": _receive_sms,
    "voice": _answer_call,
    "gather": _handle_key,
    "status": _end_call,
}


def _render_caller_prompt(
    client: Provider, number: OutboundNumber, call_id: int, prompt: VoicePrompt, step: int
) -> HttpResponse:
    keys = webhook_urls.encode_keys(prompt.keys)
    extra: dict[str, Any] = {"digits": prompt.digits} if prompt.digits > 1 else {}
    if prompt.state:
        extra["state"] = prompt.state
    url = webhook_urls.number_webhook(number, "gather", call=call_id, step=step + 1, keys=keys, **extra)
    body, content_type = client.render(prompt, url)
    return HttpResponse(body, content_type=content_type)


def _verified_client(request: HttpRequest, account: ProviderAccount | None) -> Provider | None:
    """Return the account's provider if it signed this request, else None."""
    if account is None:
        return None
    try:
        client = providers.for_account(account)
    except providers.UnknownProvider:
        return None
    url = _signed_url(request)
    if client.verify(url, request.POST, request.headers):
        return client
    report_refusal(account, url, is_signed=_is_signed(client, request))
    return None


def _is_signed(client: Provider, request: HttpRequest) -> bool:
    """Return whether the request may come from the provider.

    Anybody can send a signature, but a stranger cannot name the account.
    """
    return client.is_signed(request.headers) and client.names_account(request.POST)
