"""Register the handlers of calls and texts per purpose, which provide prompts and receive status changes.

This is the only way in which telephony invokes a higher slice within a request (docs/architecture.md, "Layers").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dispatch.telephony.speech import Speech, current_speech

if TYPE_CHECKING:
    from dispatch.telephony.models import Call, InboundCall, Text


@dataclass(frozen=True)
class VoicePrompt:
    """A spoken prompt, independent of the provider.

    `say`: sentences in order. `keys`: keys accepted during and after speaking ("" = speak and hang up). `wait_s`:
    seconds of silence before the prompt is repeated. After `times` repetitions without a key, the call is hung up.
    `digits`: instead of one key, ask for a number of at most this many digits, ended by a pause or the pound key.
    `state`: in inbound calls, what the handler needs to interpret the answer (letters, digits and hyphens, at most
    64). It travels in the URL of the answer, so that a repeated request means the same. `speech`: the language and
    voice, by default those of the surrounding `speech.speaking`; None leaves both to the provider. `hangs_up`:
    False lets the called person of a Connection talk to the caller afterwards. `play`: the address of a recording
    that is played after the sentences.
    """

    say: tuple[str, ...]
    keys: str = ""
    wait_s: int = 6
    times: int = 3
    digits: int = 1
    state: str = ""
    speech: Speech | None = field(default_factory=current_speech)
    hangs_up: bool = True
    play: str = ""


@dataclass(frozen=True)
class Connection:
    """Connect the call to the people of `legs`, who all ring at once. The first who accepts talks to the caller.

    `legs`: open calls of purpose `connect`, which the provider requests because of this document. Their handler's
    `on_answer` asks each person to accept. The result reaches the handler of the call as `on_connected`. `say`:
    before they ring. `ring_s`: how long they ring. `limit_s`: how long they may talk.
    """

    say: tuple[str, ...]
    legs: tuple[Call, ...]
    ring_s: int
    limit_s: int
    speech: Speech | None = field(default_factory=current_speech)


@dataclass(frozen=True)
class AgentConnection:
    """Connect the call to a voice agent: a program at a WebSocket `url`, which talks to the person.

    `is_relay`: the agent sends and receives text, which the provider speaks and transcribes, and `greeting` is
    spoken first. Otherwise it sends and receives audio. `parameters`: (name, value) pairs for the agent. `say`:
    before it is connected. After `limit_s`, the call is hung up. The end reaches the handler of the call as
    `on_agent_ended`.
    """

    say: tuple[str, ...]
    url: str
    is_relay: bool
    parameters: tuple[tuple[str, str], ...]
    limit_s: int
    greeting: str = ""
    speech: Speech | None = field(default_factory=current_speech)


@dataclass(frozen=True)
class AgentEnd:
    """The end of a connection to a voice agent. `handoff`: the text that the agent left at its end, if any.

    `step` identifies the connection within its call. `has_failed`: the agent was not reached, or failed.
    """

    step: int
    has_failed: bool
    handoff: str = ""


@dataclass(frozen=True)
class Redirect:
    """Redirect the call to an external document at `url`. After that, we only receive status reports."""

    url: str


Document = VoicePrompt | Redirect | Connection | AgentConnection


class CallHandler(Protocol):
    """The handler of one purpose's calls. Every method must be idempotent: it may run twice for the same event."""

    def on_answer(self, call: Call) -> Document:
        """Return the prompt after the person answers or presses star. The provider repeats the prompt itself."""

    def on_key(self, call: Call, key: str) -> Document:
        """Apply `key`, one of the last prompt's keys, and return the result as a prompt.

        The call may have ended meanwhile. The key counts as of its arrival (`services.keys_of`).
        """

    def on_status_change(self, call: Call) -> None:
        """React to a committed change of status: submitted, rejected, unknown, ringing, answered, or an end."""


class ConnectingHandler(CallHandler, Protocol):
    """A call handler whose `on_key` may return a Connection."""

    def on_connected(self, call: Call, is_connected: bool) -> VoicePrompt:
        """Return what follows after a Connection: it has ended (`is_connected`), or nobody has accepted."""


class AgentHandler(CallHandler, Protocol):
    """A call handler that may return an AgentConnection."""

    def on_agent_ended(self, call: Call, end: AgentEnd) -> Document:
        """Apply what the agent left, and return what follows."""


_handlers: dict[str, CallHandler] = {}


def register_calls(purpose: str, handler: CallHandler) -> None:
    """Register a purpose's call handler. Called from AppConfig.ready() of the slice that places these calls."""
    _handlers[purpose] = handler


def handler_for(purpose: str) -> CallHandler:
    """Return the handler of a purpose. Raises KeyError if none is registered."""
    return _handlers[purpose]


# Apply, in the transaction that records it, that the provider has accepted calls, and return the ids of those that
# are done. The handler is notified of the others after the commit.
ApplyAccepted = Callable[[Sequence["Call"]], set[int]]
# Begins that for the calls' subjects, before it is known what the provider answered. It runs in a pipeline, after
# the calls are locked, and may lock rows without waiting.
BeginAccepted = Callable[[Sequence[int]], ApplyAccepted]

_accepted: dict[str, BeginAccepted] = {}


def register_accepted(purpose: str, begin: BeginAccepted) -> None:
    """Register what a purpose does in the transaction that records that the provider has accepted its calls."""
    _accepted[purpose] = begin


def applies_accepted(purpose: str) -> bool:
    """Return whether the purpose does anything in that transaction."""
    return purpose in _accepted


def begin_accepted(subject_ids: Mapping[str, Sequence[int]]) -> ApplyAccepted:
    """Begin to apply that the provider has accepted calls, whose subjects are given by purpose."""
    by_purpose = {purpose: _accepted[purpose](found) for purpose, found in subject_ids.items()}

    def apply(calls: Sequence[Call]) -> set[int]:
        done: set[int] = set()
        for purpose, apply_calls in by_purpose.items():
            done |= apply_calls([call for call in calls if call.purpose == purpose])
        return done

    return apply


class SmsHandler(Protocol):
    """The handler of one purpose's texts. Every method may run twice for the same event."""

    def should_send(self, text: Text) -> bool:
        """Return whether the text is still needed. Called immediately before sending."""

    def on_status_change(self, text: Text) -> None:
        """React to a committed change of status, such as submitted, sent, delivered or rejected."""


class InboundHandler(Protocol):
    """A handler of inbound texts and calls.

    Handlers are asked in turn, beginning with the purpose of the last text or call to that phone, until a handler
    does not return None. A handler whose texts a stranger can cause is asked last. Every method must be
    idempotent: it may run twice for the same event.
    """

    def on_sms(self, text: Text) -> str | None:
        """Process `text`. Return the reply ("": no reply), or None if it is not for this purpose."""

    def on_help(self, text: Text) -> str | None:
        """Return the reply to HELP, or None."""

    def on_stop(self, text: Text) -> None:
        """React to an opt-out, which is already stored. Called on every handler."""

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        """Return the prompt for a caller, or None if it is not for this purpose. May set `call.subject_id`."""

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime, state: str = "") -> VoicePrompt:
        """Apply a key of the last prompt, in a call that `on_call` answered, and return the result as a prompt.

        `state` is the prompt's. `key` is empty if a prompt with a state did not offer it.
        """

    def on_digits(
        self, call: InboundCall, digits: str, *, state: str = "", is_repeated: bool = False
    ) -> VoicePrompt:
        """Apply the number that the last prompt asked for, and return the result as a prompt.

        It may be a PIN: never store or log it. `is_repeated`: the provider has delivered this request before, so a
        wrong PIN must not be counted again.
        """


class TextHold(NamedTuple):
    """A text that may not be sent now: check it again at `not_before`. `not_after` is its new deadline."""

    not_before: datetime
    not_after: datetime
    why: str


_text_handlers: dict[str, SmsHandler] = {}
_holds: dict[str, Callable[[Text], TextHold | None]] = {}
_secret_bodies: dict[str, Callable[[Text], str]] = {}
_listeners: dict[str, InboundHandler] = {}
# Purposes whose texts a stranger can cause to any phone, such as those to the customer of a public form.
_caused_by_strangers: set[str] = set()


def register_texts(
    purpose: str,
    handler: SmsHandler,
    *,
    secret_body: Callable[[Text], str] | None = None,
    hold: Callable[[Text], TextHold | None] | None = None,
) -> None:
    """Register a purpose's text handler. Called from AppConfig.ready() of the slice that sends these texts.

    Texts of a purpose without a handler are always sent, and their status changes are not reported.
    `secret_body`: returns what is sent instead of the stored body, which members of the organization can read.
    It must return the same for the same text. `hold`: returns why a due text has to wait, or None. It is called
    before the deadline of the text is checked.
    """
    _text_handlers[purpose] = handler
    if hold is not None:
        _holds[purpose] = hold
    if secret_body is not None:
        _secret_bodies[purpose] = secret_body


def sent_body(text: Text) -> str:
    """Return what the provider is asked to send. Never store or log it."""
    build = _secret_bodies.get(text.purpose)
    return text.body if build is None or text.direction != "out" else build(text)


def find_hold(text: Text) -> TextHold | None:
    """Return why its purpose makes a due text wait, or None."""
    hold = _holds.get(text.purpose)
    return None if hold is None else hold(text)


def text_handler_for(purpose: str) -> SmsHandler | None:
    """Return the text handler of a purpose, or None if none is registered."""
    return _text_handlers.get(purpose)


def register_inbound(purpose: str, listener: InboundHandler, *, by_strangers: bool = False) -> None:
    """Register an inbound handler. Called from AppConfig.ready() of the slice that people text or call back.

    `by_strangers`: a stranger can cause our texts of this purpose to any phone. Such a text must not keep the
    owner of the phone, a technician for example, from answering another one.
    """
    _listeners[purpose] = listener
    if by_strangers:
        _caused_by_strangers.add(purpose)


def inbound_handlers(first: str = "") -> list[tuple[str, InboundHandler]]:
    """Return (purpose, handler) pairs: `first`, the others, and last those whose texts strangers can cause."""
    return sorted(_listeners.items(), key=lambda item: (item[0] in _caused_by_strangers, item[0] != first))
