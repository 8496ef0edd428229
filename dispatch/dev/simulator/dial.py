"""Execute Dial on an answered call: ring other phones, and connect the first whose document has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urljoin

from .calls import BUSY, COMPLETED, FAILED, NO_ANSWER, Call, Order, Over
from .twiml import Verb

if TYPE_CHECKING:
    from .voice import Next, Voice

# The result of a Dial that nobody answered: the first of these that a leg ended with.
UNANSWERED = (BUSY, NO_ANSWER, FAILED)


async def dial(voice: Voice, verb: Verb, base: str) -> Next | None:
    """Connect the call, and return the document of `action`, which gets the result; None without an action.

    All numbers ring at once. A number's own document (`url`) is executed for the called person. Its end without a
    hang-up connects the person, and ends the other legs. If the caller hangs up (Over), all legs end.
    """
    call, engine = voice.call, voice.world.engine
    legs = [engine.dial(call, _order(call, verb, number, base)) for number in _numbers(verb)]
    call.note(f"dials {', '.join(leg.to for leg in legs)}")
    connected: Call | None = None
    try:
        while any(not leg.over for leg in legs):
            voice.handle(await call.wait(None))
            if connected is None and (connected := next((leg for leg in legs if leg.is_bridged), None)):
                call.note(f"talks to {connected.to}")
                for leg in legs:
                    if leg is not connected:
                        engine.end_leg(leg)
    finally:
        for leg in legs:
            engine.end_leg(leg)
    return _result(verb, base, connected, legs)


def _numbers(verb: Verb) -> list[Verb]:
    return verb.inside or [Verb("Number", verb.text)]


def _order(call: Call, verb: Verb, number: Verb, base: str) -> Order:
    given = number.attributes

    def url(name: str) -> str:
        return urljoin(base, given[name]) if given.get(name) else ""

    return Order(
        to=number.text,
        from_=verb.attributes.get("callerId", call.from_),
        url=url("url"),
        method=given.get("method", "POST"),
        status_callback=url("statusCallback"),
        status_callback_method=given.get("statusCallbackMethod", "POST"),
        events=frozenset(given.get("statusCallbackEvent", "completed").split()),
        timeout=verb.number("timeout", 30),
        time_limit=verb.number("timeLimit", 14_400),
    )


def _result(verb: Verb, base: str, connected: Call | None, legs: list[Call]) -> Next | None:
    from .voice import Next

    if "action" not in verb.attributes:
        if connected is None:
            return None
        raise Over(COMPLETED, "twiml")
    statuses = {leg.status for leg in legs}
    unanswered = next((status for status in UNANSWERED if status in statuses), NO_ANSWER)
    params = {"DialCallStatus": COMPLETED if connected is not None else unanswered}
    if connected is not None:
        params |= {"DialCallSid": connected.sid, "DialCallDuration": str(connected.duration)}
    return Next(urljoin(base, verb.attributes["action"]), verb.method(), "dial", params=tuple(params.items()))
