"""Send status callbacks of calls: one at a time and in order for each call, unless a fault says otherwise."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from .calls import API_VERSION, COMPLETED, FAILED, Call
from .formats import rfc2822

if TYPE_CHECKING:
    from .world import World

Letter = tuple[str, dict[str, str]]


def common_params(call: Call, status: str) -> dict[str, str]:
    """Return the parameters of every request about a call."""
    params = {
        "CallSid": call.sid,
        "AccountSid": call.account_sid,
        "From": call.from_,
        "To": call.to,
        "Caller": call.from_,
        "Called": call.to,
        "CallStatus": status,
        "ApiVersion": API_VERSION,
        "Direction": call.direction,
    }
    if call.parent_sid:
        params["ParentCallSid"] = call.parent_sid
    if call.order.verstat:
        params["StirVerstat"] = call.order.verstat
    if call.answered_by:
        params["AnsweredBy"] = call.answered_by
    return params


def fire(world: World, call: Call, event: str, status: str) -> None:
    """Send the callback of an event if it is subscribed, or apply a fault."""
    if not call.order.status_callback or event not in call.order.events:
        return
    letter = (event, _params(world, call, event, status))
    call.sequence += 1
    fault = world.faults.callback(event, call.to, call.from_)
    kind = fault.kind if fault else ""
    if kind == "lose":
        call.webhooks.append({"at": call.age(), "purpose": "status", "fault": "lose", "params": letter[1]})
        call.note(f"callback {event} is lost")
    elif kind == "delay" and fault is not None:
        call.note(f"callback {event} is delayed by {fault.span()} s")
        # Not a timer of the call: the delay may outlive it.
        world.later(fault.span(), lambda: world.spawn(_send(world, call, letter)))
    elif kind == "overlap":
        world.spawn(_send(world, call, letter))
    elif kind == "reorder" and event != "completed":
        call.note(f"callback {event} is held until the next one has been sent")
        call.held.append(letter)
    else:
        _queue(world, call, [letter, letter] if kind == "duplicate" else [letter])


def fire_detection(world: World, call: Call, seconds: float) -> None:
    """Send the result of detection in the background. It waits for no status callback, and none waits for it."""
    order = call.order
    if not order.detection_callback:
        return
    params = {
        "CallSid": call.sid,
        "AccountSid": call.account_sid,
        "AnsweredBy": call.answered_by,
        "MachineDetectionDuration": str(round(seconds * 1000)),
    }

    def send() -> None:
        url, method = order.detection_callback, order.detection_callback_method
        world.spawn(world.post(call, url, method, params, "detection"))

    fault = world.faults.callback("detection", call.to, call.from_)
    kind = fault.kind if fault else ""
    if kind == "lose":
        call.note("callback detection is lost")
    elif kind == "delay" and fault is not None:
        call.note(f"callback detection is delayed by {fault.span()} s")
        world.later(fault.span(), send)
    else:
        for _ in range(2 if kind == "duplicate" else 1):
            send()


def _queue(world: World, call: Call, letters: list[Letter]) -> None:
    idle = not call.outbox
    call.outbox.extend(letters)
    call.outbox.extend(call.held)
    call.held.clear()
    if idle:
        world.spawn(_drain(world, call))


async def _drain(world: World, call: Call) -> None:
    while call.outbox:
        await _send(world, call, call.outbox[0])
        call.outbox.popleft()


async def _send(world: World, call: Call, letter: Letter) -> None:
    event, params = letter
    order = call.order
    await world.post(call, order.status_callback, order.status_callback_method, params, "status")
    call.delivered.setdefault(event, asyncio.Event()).set()


def _params(world: World, call: Call, event: str, status: str) -> dict[str, str]:
    params = common_params(call, status)
    params["SequenceNumber"] = str(call.sequence)
    params["CallbackSource"] = "call-progress-events"
    params["Timestamp"] = rfc2822(world.clock.wall()) or ""
    if event == "completed":
        params["CallDuration"] = str(call.duration)
        params["Duration"] = str(-(-call.duration // 60))
    if call.sip and status != COMPLETED:
        params["SipResponseCode"] = str(call.sip)
    if call.reported_code and status == FAILED:
        params["ErrorCode"] = str(call.reported_code)
        params["ErrorMessage"] = f"The call failed with error {call.reported_code}"
    return params
