"""What the provider calls about our numbers and our texts: somebody texts, somebody calls, a text arrived.

The number is named by its own id in the address, so that its organization is known, and what is not signed by the
number's account, or speaks of another number, gets the 403 of an address that does not exist."""

from __future__ import annotations

from collections.abc import Callable

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.telephony import addresses, providers
from dispatch.telephony.errors import NotTheirs
from dispatch.telephony.models import Text
from dispatch.telephony.providers.base import Provider
from dispatch.telephony.providers.twilio_words import whole
from dispatch.telephony.purposes import Prompt
from dispatch.telephony.services import incoming
from dispatch.telephony.webhooks import MOST_STEPS, SILENCE, refused


@csrf_exempt
@require_POST
def text_status(request: HttpRequest, provider: str, text_id: int) -> HttpResponse:
    """POST /telephony/<provider>/texts/<text id>/status"""
    structlog.contextvars.bind_contextvars(text=text_id)
    found = Text.objects.select_related("account").filter(pk=text_id, account__provider=provider)
    text = found.first() if text_id < 2**63 else None
    speaker = _verified(request, text.account if text else None)
    if text is None or speaker is None:
        return refused()
    try:
        incoming.report_text(text.pk, speaker.parse_text(request.POST.dict()))
    except NotTheirs:
        return refused()
    return HttpResponse(status=204)


@csrf_exempt
@require_POST
def number_hook(request: HttpRequest, provider: str, number_id: int, kind: str) -> HttpResponse:
    """POST /telephony/<provider>/numbers/<number id>/<sms|voice|gather|status>"""
    found = OutboundNumber.objects.select_related("account", "organization")
    number = found.filter(pk=number_id, account__provider=provider).first() if number_id < 2**63 else None
    speaker = _verified(request, number.account if number else None)
    answer = _KINDS.get(kind)
    if number is None or speaker is None or answer is None:
        return refused()
    try:
        return answer(request, number, speaker)
    except NotTheirs:
        return refused()


def _sms(request: HttpRequest, number: OutboundNumber, speaker: Provider) -> HttpResponse:
    incoming.receive_text(number, speaker.parse_incoming(request.POST.dict()))
    body, content_type = speaker.render_nothing()  # answers go the way of every text of ours
    return HttpResponse(body, content_type=content_type)


def _voice(request: HttpRequest, number: OutboundNumber, speaker: Provider) -> HttpResponse:
    call, prompt = incoming.answer_call(number, speaker.parse_incoming(request.POST.dict()))
    return _spoken(speaker, number, call.pk, prompt, 0)


def _gather(request: HttpRequest, number: OutboundNumber, speaker: Provider) -> HttpResponse:
    step = min(whole(request.GET.get("step")) or 0, MOST_STEPS)
    call_id, keys = whole(request.GET.get("call")) or 0, request.GET.get("keys", "")
    call, prompt = incoming.press_in_call(call_id, number, speaker.parse_incoming(request.POST.dict()), keys)
    return _spoken(speaker, number, call.pk, SILENCE if step >= MOST_STEPS else prompt, step)


def _status(request: HttpRequest, number: OutboundNumber, speaker: Provider) -> HttpResponse:
    incoming.end_call(number, speaker.parse_incoming(request.POST.dict()))
    return HttpResponse(status=204)


_KINDS: dict[str, Callable[[HttpRequest, OutboundNumber, Provider], HttpResponse]] = {
    "sms": _sms,
    "voice": _voice,
    "gather": _gather,
    "status": _status,
}


def _spoken(speaker: Provider, number: OutboundNumber, call_id: int, prompt: Prompt, step: int) -> HttpResponse:
    url = addresses.number_webhook(number, "gather", call=call_id, step=step + 1, keys=prompt.keys)
    body, content_type = speaker.render(prompt, url)
    return HttpResponse(body, content_type=content_type)


def _verified(request: HttpRequest, account: ProviderAccount | None) -> Provider | None:
    """The account's provider, if it has signed this request."""
    if account is None:
        return None
    try:
        speaker = providers.for_account(account)
    except providers.UnknownProvider:
        return None
    url = f"{settings.PUBLIC_BASE_URL}{request.get_full_path()}"
    return speaker if speaker.verify(url, request.POST, request.headers) else None
