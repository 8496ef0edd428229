"""Who places calls registers here for its purpose; telephony asks what to say and tells what happened.

This is the one way by which telephony speaks upwards in the same request (DESIGN.md, "The map").
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from dispatch.telephony.models import Call


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
