"""What the provider calls: a call was answered, a key was pressed, a status changed.

Whatever is not proven to come from the call's own account gets the same 403, so that nobody learns which calls
exist. An error of ours is a 500, and the provider asks again (its overrides are in the address)."""

from __future__ import annotations

from dataclasses import replace

import structlog
from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from dispatch.core import rows
from dispatch.telephony import addresses, providers
from dispatch.telephony.errors import NotTheirs
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import Hook, Provider
from dispatch.telephony.providers.twilio_words import whole
from dispatch.telephony.purposes import Handler, HandOver, Prompt, handler_for
from dispatch.telephony.services.progress import receive

log = structlog.get_logger(__name__)

KINDS = ("voice", "gather", "status")
SILENCE = Prompt(say=())
MOST_STEPS = 100  # documents in one call; far beyond any menu


@csrf_exempt
@require_POST
def webhook(request: HttpRequest, provider: str, call_id: int, kind: str) -> HttpResponse:
    """POST /telephony/<provider>/calls/<call id>/<voice|gather|status>"""
    structlog.contextvars.bind_contextvars(call=call_id)
    call = _the_call(provider, call_id) if kind in KINDS else None
    if call is None:
        return refused()
    # what the call is for: its job, its lead
    structlog.contextvars.bind_contextvars(**{name.removesuffix("_id"): of for name, of in call.context.items()})
    try:
        speaker = providers.for_account(call.account)
    except providers.UnknownProvider:
        return refused()
    if not speaker.verify(f"{settings.PUBLIC_BASE_URL}{request.get_full_path()}", request.POST, request.headers):
        return refused()
    step = min(whole(request.GET.get("step")) or 0, MOST_STEPS)
    hook = speaker.parse(kind, step, request.POST.dict())
    try:
        call = receive(call_id, hook)
    except NotTheirs:
        return refused()
    try:
        handler = handler_for(call.purpose)
    except KeyError:
        log.error("nobody registered for this purpose", purpose=call.purpose)
        return HttpResponse(status=204) if kind == "status" else _spoken(speaker, call, SILENCE, step)
    # also for what came before: the first time, this process may have died between its commit and here
    handler.changed(call)
    if kind == "status":
        return HttpResponse(status=204)
    return _spoken(speaker, call, _what_to_say(handler, call, hook, step, request.GET.get("keys", "")), step)


def _what_to_say(handler: Handler, call: Call, hook: Hook, step: int, keys: str) -> Prompt | HandOver:
    if call.ended_at is not None or step >= MOST_STEPS:
        return SILENCE
    pressed = hook.kind == "gather" and len(hook.digits) == 1 and hook.digits in keys
    if call.cancel_requested_at is not None:  # whoever still presses a key hears what became of it, and no more
        said = handler.pressed(call, hook.digits) if pressed else SILENCE
        return replace(said, keys="") if isinstance(said, Prompt) else SILENCE
    if pressed:
        return handler.pressed(call, hook.digits)
    return handler.answered(call)  # the beginning, a star, or a key that means nothing


def _spoken(speaker: Provider, call: Call, prompt: Prompt | HandOver, step: int) -> HttpResponse:
    if isinstance(prompt, HandOver):
        body, content_type = speaker.render_hand_over(prompt.url)
    else:
        body, content_type = speaker.render(prompt, addresses.webhook(call, "gather", step + 1, prompt.keys))
    return HttpResponse(body, content_type=content_type)


def _the_call(provider: str, call_id: int) -> Call | None:
    call = rows.one(Call, "t.id = %s", [call_id], "account") if call_id < 2**63 else None
    return call if call is not None and call.account.provider == provider else None


def refused() -> HttpResponse:
    return HttpResponse("Forbidden", status=403, content_type="text/plain")
