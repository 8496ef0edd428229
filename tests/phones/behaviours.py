"""What a phone does when it rings: the data of the simulator's behaviours, in words."""

from __future__ import annotations

from typing import Any

Behaviour = dict[str, Any]


def answer(
    after: float = 1.0,
    press: str = "",
    *,
    press_after: float | None = None,
    when_heard: str | None = None,
    hang_up_after: float | None = None,
    hang_up_when_heard: str | None = None,
    hang_up_during: str | None = None,
    then_hang_up: bool = False,
) -> Behaviour:
    """Pick up after `after` simulated seconds and press a key.

    Without `press_after` or `when_heard` the key follows the prompt.
    """
    behaviour: Behaviour = {"do": "answer", "after": after}
    if press:
        trigger: dict[str, Any] = {} if press_after is None else {"after": press_after}
        if when_heard is not None:
            trigger["heard"] = when_heard
        behaviour["keys"] = [{"key": press, **trigger}]
    if hang_up_after is not None:
        behaviour["hang_up"] = {"after": hang_up_after}
    elif hang_up_when_heard is not None:
        behaviour["hang_up"] = {"heard": hang_up_when_heard}
    elif hang_up_during is not None:
        behaviour["hang_up"] = {"during": hang_up_during}
    elif then_hang_up:
        behaviour["hang_up"] = {}
    return behaviour


def ignore() -> Behaviour:
    """Let it ring until the caller gives up: no-answer."""
    return {"do": "ring"}


def manual() -> Behaviour:
    """Ring until the test answers, declines or hangs up."""
    return {"do": "manual"}


def busy(after: float = 1.0) -> Behaviour:
    return {"do": "busy", "after": after}


def decline(after: float = 1.0) -> Behaviour:
    """Refuse the call while it rings: busy, SIP 603."""
    return {"do": "reject", "after": after}


def fails(error_code: int | None = None, after: float = 1.0, sip: int = 404) -> Behaviour:
    """The network cannot reach it: failed, with a SIP response; with an ErrorCode only if one is given."""
    code = {} if error_code is None else {"error_code": error_code}
    return {"do": "fail", "sip": sip, "after": after, **code}


def voicemail(after: float = 2.0) -> Behaviour:
    """A machine answers and presses nothing; AnsweredBy machine_start where detection was asked for."""
    return {"do": "voicemail", "after": after}


def screens(
    then: str = "connect", press: str = "", *, decide_after: float = 12.0, after: float = 2.0
) -> Behaviour:
    """An assistant picks up and presses nothing; later the person takes the call and presses a key, or doesn't.

    `then`: connect, hang_up or voicemail.
    """
    keys = {"keys": [{"key": press}]} if press else {}
    return {"do": "screen", "then": then, "decide_after": decide_after, "after": after, **keys}


def gives_up(after: float = 2.0) -> Behaviour:
    """The ringing is ended by the other side: no-answer before the time-out."""
    return {"do": "give_up", "after": after}


def refused(code: int = 21211) -> Behaviour:
    """The provider refuses the create request with this error: no call exists."""
    return {"do": "refuse", "code": code}


def mix(*weighted: tuple[float, Behaviour]) -> Behaviour:
    """One of several, by seeded chance."""
    return {"do": "mix", "of": [{**behaviour, "weight": weight} for weight, behaviour in weighted]}
