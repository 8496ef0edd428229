"""Test calls: an Admin lets one of the numbers call a phone, to hear that it works. Purpose `test`; the subject is
the OutboundNumber. Nothing but the call's row comes of it."""

from __future__ import annotations

from datetime import timedelta

from django.db import transaction
from django.db.models import Max

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.telephony import purposes, services
from dispatch.telephony.models import Call
from dispatch.telephony.purposes import Prompt

CONFIRM_KEY = "1"
RING_S, LONGEST_S = 30, 60
PLACED_WITHIN = timedelta(minutes=2)
_GREETING = ("This is a test call from Dispatch.", "Press 1 to confirm that you hear it.")


class NumberPaused(Exception):
    """A number that is paused, or of a paused pool or an inactive account, makes no calls."""


class TestCalls:
    """The handler of calls with purpose `test`."""

    def answered(self, call: Call) -> Prompt:
        """What it is, and the key to press."""
        return Prompt(_GREETING, keys=CONFIRM_KEY)

    def pressed(self, call: Call, key: str) -> Prompt:
        """Thanks for the key, which the call's row keeps."""
        return Prompt(("Confirmed. Goodbye.",)) if key == CONFIRM_KEY else self.answered(call)

    def changed(self, call: Call) -> None:
        """Nothing hangs on it."""


def call_from(number: OutboundNumber, to_phone: str, *, actor: Actor) -> Call:
    """A test call from `number` to `to_phone` (E.164), which the placer asks for within seconds. It takes one of
    the number's lines, and the provider's turn, as every call.

    Raises NumberPaused, and what `services.create_call` raises: NoLine, PhoneBusy, CallNotAllowed."""
    with transaction.atomic():
        # One test of a number at a time gets its attempt's number.
        locked = OutboundNumber.objects.select_for_update(no_key=True, of=("self",))
        number = locked.select_related("pool", "account", "organization").get(pk=number.pk)
        if number.is_paused or number.pool.is_paused or not number.account.is_active:
            raise NumberPaused
        before = services.calls_of("test", number.pk).order_by().aggregate(last=Max("attempt"))["last"]
        call = services.create_call(
            organization=number.organization,
            purpose="test",
            subject_id=number.pk,
            attempt=(before or 0) + 1,
            to_phone=to_phone,
            pool=number.pool,
            number=number,
            ring_timeout_s=RING_S,
            time_limit_s=LONGEST_S,
            place_by=clock.now() + PLACED_WITHIN,
        )
        events.append(
            number.organization_id, "number.tested", number.pk, actor=actor, name=str(number), call=call.pk
        )
        return call


def register() -> None:
    """Registers the test purpose with telephony."""
    purposes.register("test", TestCalls())
