"""Who places calls registers here for its purpose; telephony asks what to say and tells what happened.

This is the one way by which telephony speaks upwards in the same request (DESIGN.md, "The map").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dispatch.telephony.models import Call, InboundCall, Text


@dataclass(frozen=True)
class Prompt:
    """What is heard, in any provider's words.

    `say`: sentences read in order. `keys`: the keys listened for while and after speaking ("" = say and hang up).
    `wait_s`: seconds of silence before the prompt is repeated; after `times` tellings without a key, hang up.
    """

    say: tuple[str, ...]
    keys: str = ""
    wait_s: int = 6
    times: int = 3


@dataclass(frozen=True)
class HandOver:
    """The provider goes on with another's document at `url`, and asks us no more but for the call's statuses."""

    url: str


class Handler(Protocol):
    """What a purpose answers. Every method may be called twice for the same thing and must then change nothing."""

    def answered(self, call: Call) -> Prompt | HandOver:
        """The person picked up (or pressed star): what do they hear? The provider repeats it by itself."""

    def pressed(self, call: Call, key: str) -> Prompt | HandOver:
        """They pressed `key`, one of the last prompt's keys: act on it, and say what came of it."""

    def changed(self, call: Call) -> None:
        """The call's status moved (already committed): submitted, rejected, unknown, ringing, answered, an end."""


_handlers: dict[str, Handler] = {}


def register(purpose: str, handler: Handler) -> None:
    """Called from AppConfig.ready() of the slice that places calls of this purpose."""
    _handlers[purpose] = handler


def handler_for(purpose: str) -> Handler:
    """Raises KeyError for a purpose nobody registered."""
    return _handlers[purpose]


class TextHandler(Protocol):
    """What a purpose that sends texts answers. Every method may be called twice for the same thing."""

    def wanted(self, text: Text) -> bool:
        """Asked right before it is sent: is it still worth it?"""

    def changed(self, text: Text) -> None:
        """The text's status moved (already committed): submitted, sent, delivered, undelivered, rejected, ..."""


class Listener(Protocol):
    """Who is asked when somebody texts or calls one of our numbers. Whose text was the last to that phone is asked
    first; the first who does not answer None has dealt with it. Each method may be called twice for the same
    thing and must then change nothing."""

    def replied(self, text: Text) -> str | None:
        """They sent `text`: act on it. What to answer ("": nothing), or None when it is not for this purpose."""

    def helped(self, text: Text) -> str | None:
        """They sent HELP: what to answer, or None."""

    def called(self, call: InboundCall) -> Prompt | None:
        """They called: what do they hear? None when it is not for this purpose. May set `call.subject_id`."""

    def pressed(self, call: InboundCall, key: str) -> Prompt:
        """They pressed one of the last prompt's keys in a call that `called` has answered."""


_text_handlers: dict[str, TextHandler] = {}
_listeners: dict[str, Listener] = {}


def register_texts(purpose: str, handler: TextHandler) -> None:
    """Called from AppConfig.ready() of the slice that sends texts of this purpose. A purpose without a handler is
    always wanted, and nobody is told of its changes."""
    _text_handlers[purpose] = handler


def text_handler_for(purpose: str) -> TextHandler | None:
    return _text_handlers.get(purpose)


def register_listener(purpose: str, listener: Listener) -> None:
    """Called from AppConfig.ready() of the slice to which people text or call back."""
    _listeners[purpose] = listener


def listeners(first: str = "") -> list[tuple[str, Listener]]:
    """(purpose, listener), that of the purpose `first` before the others."""
    return sorted(_listeners.items(), key=lambda item: item[0] != first)
