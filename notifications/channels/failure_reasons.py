"""Say why a chat service did not take a message, and whether it may take it later. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dispatch.core.stored_texts import mark_stored

# A service's request to wait is granted up to this many seconds.
MAX_RETRY_AFTER_S = 900
_ANY = "any"
ANSWERED = mark_stored("{service} answered {status}: {why}")
LATE = mark_stored("{service} did not answer in time")
NOT_LOOKED_UP = mark_stored("{service} was not looked up in time")
UNREACHABLE = mark_stored("{service} could not be reached")
FORBIDDEN = mark_stored("{service} may not be called: {why}")
_WORDS: dict[tuple[str, int], str] = {
    ("slack", 400): mark_stored("the webhook does not accept messages"),
    ("slack", 403): mark_stored("the app may not post to this channel"),
    ("slack", 404): mark_stored("the webhook was deleted"),
    ("slack", 410): mark_stored("the channel was archived"),
    ("teams", 401): mark_stored("the workflow URL is not valid"),
    ("teams", 403): mark_stored("the workflow URL is not valid"),
    ("teams", 404): mark_stored("the workflow was deleted"),
    ("google_chat", 400): mark_stored("the webhook URL is not valid"),
    ("google_chat", 401): mark_stored("the webhook URL is not valid"),
    ("google_chat", 403): mark_stored("the webhook may not post to this space"),
    ("google_chat", 404): mark_stored("the space or its webhook was deleted"),
    ("telegram", 400): mark_stored("the chat was not found"),
    ("telegram", 401): mark_stored("the bot token is not valid"),
    ("telegram", 403): mark_stored("the bot was blocked or removed from the chat"),
    ("telegram", 404): mark_stored("the bot token is not valid"),
    ("matrix", 401): mark_stored("the access token is not valid"),
    ("matrix", 403): mark_stored("the account is not in the room"),
    ("matrix", 404): mark_stored("the server or the room was not found"),
    ("ntfy", 401): mark_stored("the access token is not valid"),
    ("ntfy", 403): mark_stored("this token may not write to the topic"),
    ("ntfy", 404): mark_stored("this is not an ntfy server"),
    ("webhook", 401): mark_stored("the token is not valid"),
    ("webhook", 403): mark_stored("the token is not valid"),
    ("webhook", 404): mark_stored("nothing is at this URL"),
    ("webhook", 410): mark_stored("the receiver was removed"),
    ("push", 401): mark_stored("it does not accept this installation's key"),
    ("push", 403): mark_stored("the browser subscribed under another key"),
    ("push", 404): mark_stored("the browser no longer takes notifications"),
    ("push", 410): mark_stored("the browser no longer takes notifications"),
    (_ANY, 408): mark_stored("the request took too long"),
    (_ANY, 413): mark_stored("the message is too long"),
    (_ANY, 429): mark_stored("too many messages"),
}
_USUAL = (
    mark_stored("it did not confirm the message"),
    mark_stored("a redirect, which is not followed"),
    mark_stored("it rejected the message"),
    mark_stored("the service has a problem"),
)
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
    return Failure(ANSWERED.format(service=label, status=status, why=words), is_permanent, _retry_after(headers))


def _usual(status: int) -> str:
    if status < 300:
        return _USUAL[0]
    if status < 400:
        return _USUAL[1]
    return _USUAL[2] if status < 500 else _USUAL[3]


def _retry_after(headers: Mapping[str, str]) -> int:
    given = headers.get("retry-after", "")
    return min(int(given), MAX_RETRY_AFTER_S) if given.isascii() and given.isdigit() and len(given) < 8 else 0
