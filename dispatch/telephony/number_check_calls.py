"""Place test calls (purpose `test`) from one of the numbers at an admin's request.

The subject is the OutboundNumber. A test call has no effect other than its own row. One that previews a voice
(`voice_previews`) names the row in its context.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.languages import gettext, mark, translated
from dispatch.telephony import handlers, services, voice_samples
from dispatch.telephony.handlers import AgentConnection, AgentEnd, VoicePrompt
from dispatch.telephony.models import Call
from dispatch.telephony.speech import speaking, speech_for

CONFIRM_KEY = "1"
RING_S, TIME_LIMIT_S = 30, 60
PLACE_WITHIN = timedelta(minutes=2)
_GREETING = (mark("This is a test call from Dispatch."), mark("Press 1 to confirm that you can hear it."))

_AGENT_FAILED = mark("The voice agent could not be reached, or failed.")
_AGENT_ENDED = mark("The voice agent has ended. Goodbye.")


class NumberPaused(Exception):
    """The number or its pool is paused, or its account is inactive."""


class NumberCheckCalls:
    """The handler of calls with purpose `test`."""

    def on_answer(self, call: Call) -> VoicePrompt | AgentConnection:
        """Return the sample that the call previews, or the greeting and the key to press."""
        if kind := call.context.get("preview"):
            return voice_samples.build(kind, call.context["preview_id"])
        with speaking(speech_for(call.organization)):
            return VoicePrompt(translated(_GREETING), keys=CONFIRM_KEY)

    def on_key(self, call: Call, key: str) -> VoicePrompt | AgentConnection:
        """Confirm the key, or say what follows it in the sample. The call's row already stores it."""
        if kind := call.context.get("preview"):
            return voice_samples.build(kind, call.context["preview_id"], key)
        if key != CONFIRM_KEY:
            return self.on_answer(call)
        with speaking(speech_for(call.organization)):
            return VoicePrompt((gettext("Confirmed. Goodbye."),))

    def on_agent_ended(self, call: Call, end: AgentEnd) -> VoicePrompt:
        """Say whether the voice agent of the sample failed."""
        with speaking(speech_for(call.organization)):
            return VoicePrompt((gettext(_AGENT_FAILED if end.has_failed else _AGENT_ENDED),))

    def on_status_change(self, call: Call) -> None:
        """Do nothing: no state depends on a test call."""


def place_test_call(
    number: OutboundNumber, to_phone: str, *, actor: Actor, context: dict[str, Any] | None = None
) -> Call:
    """Create a test call from `number` to `to_phone` (E.164), which the placer requests within seconds.

    Like every call, it takes one of the number's lines and a token of the rate limits. Raises NumberPaused and the
    exceptions of `services.create_call`: NoLine, PhoneBusy, CallNotAllowed.
    """
    with transaction.atomic():
        # The lock serializes attempt numbers.
        locked = OutboundNumber.objects.select_for_update(no_key=True, of=("self",))
        number = locked.select_related("pool", "account", "organization").get(pk=number.pk)
        if number.is_paused or number.pool.is_paused or not number.account.is_active:
            raise NumberPaused
        last_attempt = services.calls_of("test", number.pk).order_by().aggregate(last=Max("attempt"))["last"]
        call = services.create_call(
            organization=number.organization,
            purpose="test",
            subject_id=number.pk,
            attempt=(last_attempt or 0) + 1,
            to_phone=to_phone,
            pool=number.pool,
            number=number,
            ring_timeout_s=RING_S,
            time_limit_s=TIME_LIMIT_S,
            place_by=clock.now() + PLACE_WITHIN,
            context=context or {},
        )
        events.append(
            number.organization_id, "number.tested", number.pk, actor=actor, name=str(number), call=call.pk
        )
        return call


def register() -> None:
    """Register the handler of test calls with telephony."""
    handlers.register_calls("test", NumberCheckCalls())
