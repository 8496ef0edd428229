"""Say why a chat service did not take a message, and whether it may take it later. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# A service's request to wait is granted up to this many seconds.
MAX_RETRY_AFTER_S = 900
_ANY = "any"
_WORDS: dict[tuple[str, int], str] = {
    ("slack", 400): "the webhook does not accept messages",
    ("slack", 403): "the app may not post to this channel",
    ("slack", 404): "the webhook was deleted",
    ("slack", 410): "the channel was archived",
    ("teams", 401): "the workflow URL is not valid",
    ("teams", 403): "the workflow URL is not valid",
    ("teams", 404): "the workflow was deleted",
    ("google_chat", 400): "the webhook URL is not valid",
    ("google_chat", 401): "the webhook URL is not valid",
    ("google_chat", 403): "the webhook may not post to this space",
    ("google_chat", 404): "the space or its webhook was deleted",
    ("telegram", 400): "the chat was not found",
    ("telegram", 401): "the bot token is not valid",
    ("telegram", 403): "the bot was blocked or removed from the chat",
    ("telegram", 404): "the bot token is not valid",
    ("matrix", 401): "the access token is not valid",
    ("matrix", 403): "the account is not in the room",
    ("matrix", 404): "the server or the room was not found",
    ("ntfy", 401): "the access token is not valid",
    ("ntfy", 403): "this token may not write to the topic",
    ("ntfy", 404): "this is not an ntfy server",
    ("webhook", 401): "the token is not valid",
    ("webhook", 403): "the token is not valid",
    ("webhook", 404): "nothing is at this URL",
    ("webhook", 410): "the receiver was removed",
    ("push", 401): "it does not accept this installation's key",
    ("push", 403): "the browser subscribed under another key",
    ("push", 404): "the browser no longer takes notifications",
    ("push", 410): "the browser no longer takes notifications",
    (_ANY, 408): "the request took too long",
    (_ANY, 413): "the message is too long",
    (_ANY, 429): "too many messages",
}
_TRANSIENT = frozenset({408, 425, 429})


@dataclass(frozen=True)
class Failure:
    """Why a message was not taken. `is_permanent`: a retry does not help. `wait_s`: what the service asked for."""

    reason: str
    is_permanent: bool
    wait_s: int = 0


def describe_status(kind: str, label: str, status: int, headers: Mapping[str, str]) -> Failure:
    """Return the failure of a response with this status. Names in `headers` are in lower case."""
    words = _WORDS.get((kind, status)) or _WORDS.get((_ANY, status)) or _usual(status)
    is_permanent = 300 <= status < 500 and status not in _TRANSIENT
    return Failure(f"{label} answered {status}: {words}", is_permanent, _retry_after(headers))


def _usual(status: int) -> str:
    if status < 300:
        return "it did not confirm the message"
    if status < 400:
        return "a redirect, which is not followed"
    return "it rejected the message" if status < 500 else "the service has a problem"


def _retry_after(headers: Mapping[str, str]) -> int:
    given = headers.get("retry-after", "")
    return min(int(given), MAX_RETRY_AFTER_S) if given.isascii() and given.isdigit() and len(given) < 8 else 0
