"""Define the interface of a phone provider, with our own types.

To add a provider, add a module beside `twilio` with a `make(account)` that returns a Provider.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any

from dispatch.telephony.handlers import AgentConnection, Connection, VoicePrompt
from dispatch.telephony.rules import ListedCall


@dataclass(frozen=True)
class Submitted:
    """The provider accepted the request. `status` is one of our statuses, usually submitted."""

    sid: str
    status: str = "submitted"


@dataclass(frozen=True)
class Rejected:
    """The provider refused the request; nothing was created.

    `permanent`: it will always refuse this number. `kind`: number, permission, configuration, opted_out, filtered,
    temporary or other. `is_account_wide`: it refuses every request of the account, whatever the number.
    """

    permanent: bool
    code: str
    message: str
    kind: str = "other"
    is_account_wide: bool = False

    @property
    def reason(self) -> str:
        """Return the provider's message and code."""
        code = f" (error {self.code})" if self.code.strip("0") else ""
        return f"{self.message or 'no reason given'}{code}"


@dataclass(frozen=True)
class RateLimited:
    """The request was certainly not processed, and may be repeated after `retry_after_s`.

    `is_unreachable`: no connection could be made.
    """

    retry_after_s: float
    reason: str = ""
    is_unreachable: bool = False


@dataclass(frozen=True)
class Unknown:
    """The outcome of the request is unknown. The request must never be repeated."""

    reason: str


Outcome = Submitted | Rejected | RateLimited | Unknown


# The key of a stored webhook's payload under which the end of a voice agent keeps its step.
STEP = "_step"


@dataclass(frozen=True)
class CallRequest:
    """A call to place.

    The URLs carry our call id. The request must be sent within `leave_within_s`. `detect_machine`: report in
    `answered_by` whether a person or a machine answered; with `waits_for_beep`, a machine's prompt is requested
    after its greeting. `fallback_url`: the document for a call whose webhooks fail.
    """

    to: str
    from_: str
    voice_url: str
    status_url: str
    ring_timeout_s: int
    time_limit_s: int
    leave_within_s: float
    detect_machine: bool = False
    fallback_url: str = ""
    waits_for_beep: bool = False


@dataclass(frozen=True)
class TextRequest:
    """A text to send.

    The request must be sent within `leave_within_s`. The provider must not deliver the text later than `valid_s`
    after it. `service`: the provider's group of senders that `from_` belongs to, if any.
    """

    to: str
    from_: str
    body: str
    status_url: str = ""
    leave_within_s: float | None = None
    valid_s: int | None = None
    service: str = ""


@dataclass(frozen=True)
class StatusReport:
    """The provider's report on a call. `status` is one of our statuses, or None if it maps to none of them."""

    sid: str
    status: str | None
    duration_s: int | None = None
    answered_by: str = ""
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True)
class WebhookEvent(StatusReport):
    """A verified webhook about a call. `key` deduplicates it within its call. `digits`: the pressed keys."""

    key: str = ""
    kind: str = "status"
    account_sid: str = ""
    sequence: int | None = None
    digits: str = ""
    is_connected: bool = False  # of a connection that has ended: whether somebody accepted
    handoff: str = ""  # what a voice agent left at its end
    is_stream: bool = False  # a report on the audio stream to a voice agent
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class AccountInfo:
    """The account as the provider knows it. `status` and `kind` are the provider's words."""

    name: str
    status: str
    kind: str
    is_active: bool


@dataclass(frozen=True)
class TextReport:
    """The provider's report on a text. `status` is one of our statuses, or None if it maps to none of them."""

    sid: str
    status: str | None
    account_sid: str = ""
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True)
class Price:
    """What a call or text cost. A negative `amount` is a credit. `unit`: three letters, or empty if unknown."""

    amount: Decimal
    unit: str


@dataclass(frozen=True)
class PriceRequest:
    """Calls or texts (`is_text`) whose prices are wanted. They began between `since` and `until`."""

    sids: Sequence[str]
    since: datetime
    until: datetime
    is_text: bool = False


@dataclass(frozen=True)
class IncomingWebhook:
    """A verified webhook about one of our numbers: an inbound text (`body`) or call (`keys`, `ended`).

    `from_` is empty if the caller withholds the number. `attestation`: what the carrier says about that number.
    """

    sid: str
    account_sid: str
    to: str
    from_: str
    body: str = ""
    keys: str = ""
    ended: bool = False
    duration_s: int | None = None
    attestation: str = ""


@dataclass(frozen=True)
class ListedText(ListedCall):
    """A text in the provider's list."""

    body: str = ""


@dataclass(frozen=True)
class LegUrls:
    """The webhooks of one leg of a connection: its prompt, and its status reports."""

    voice_url: str
    status_url: str


@dataclass(frozen=True)
class AgentUrls:
    """The webhooks of a connection to a voice agent: its end, and the reports on its audio stream."""

    end_url: str
    stream_url: str


class CallGone(Exception):
    """The provider does not know the call."""


class ProviderError(Exception):
    """The provider gave no usable response. Try again later."""


class TooManyRequests(ProviderError):
    """The provider did not process the request, because it received too many."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class Provider(ABC):
    """A client of one account at one provider. Threads share it (see `providers.for_account`)."""

    # Whether the provider implements `place_async`. If not, bulk requests run `place` in threads.
    is_async = False
    # How many concurrent requests for calls `place_async` makes for an account; 0: any number.
    max_requests = 0
    # Whether the provider implements `fetch_prices`.
    has_prices = False

    @abstractmethod
    def place(self, order: CallRequest) -> Outcome:
        """Request a call, once. Never raises."""

    async def place_async(self, order: CallRequest) -> Outcome:
        """Request a call as `place` does, in an event loop."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027  (a client without connections has nothing to close)
        """Close the client's idle connections. The client stays usable, also for requests in progress."""

    @abstractmethod
    def hang_up(self, sid: str) -> StatusReport:
        """End the call in any state, and return its status after that. Raises CallGone and ProviderError."""

    def repeat_prompt(self, sid: str, voice_url: str) -> None:
        """Fetch the prompt of an answered call again, at `voice_url`. Raises CallGone and ProviderError."""
        raise ProviderError(f"{type(self).__name__} changes no prompt during a call.")

    @abstractmethod
    def fetch(self, sid: str) -> StatusReport:
        """Return the call's status. Raises CallGone and ProviderError."""

    @abstractmethod
    def find_calls(self, to: str, from_: str) -> list[ListedCall]:
        """Return the latest calls between the two numbers. Raises ProviderError."""

    @abstractmethod
    def send_text(self, order: TextRequest) -> Outcome:
        """Send an SMS, once. Never raises."""

    def find_texts(self, to: str, from_: str) -> list[ListedText]:
        """Return the latest texts between the two numbers. Raises ProviderError."""
        raise ProviderError(f"{type(self).__name__} lists no texts.")

    def fetch_prices(self, wanted: PriceRequest) -> dict[str, Price]:
        """Return the prices that are known, by id. Few requests, however many ids. Raises ProviderError."""
        raise ProviderError(f"{type(self).__name__} knows no prices.")

    def fetch_account(self) -> AccountInfo | Rejected | Unknown | None:
        """Return the account without placing a call, free of charge; None if the provider can't tell.

        Never raises.
        """
        return None

    def check_account(self) -> Rejected | Unknown | None:
        """Check the account without placing a call, free of charge. Return None if it is usable. Never raises."""
        account = self.fetch_account()
        if isinstance(account, AccountInfo):
            if account.is_active:
                return None
            return Rejected(False, "", f"the account is {account.status}", "configuration", True)
        return account

    def about(self, code: str) -> str:
        """Return the `Rejected.kind` of an error code."""
        return "other"

    def is_sure(self, code: str) -> bool:
        """Return whether the code alone proves its kind. If not, it takes the same kind in two calls."""
        return True

    def meaning_of(self, code: str) -> str:
        """Describe an error code of a text whose report carries no message; empty if unknown."""
        return ""

    @abstractmethod
    def verify(self, url: str, form: Any, headers: Mapping[str, str]) -> bool:
        """Return whether the account signed this request. `form`: the parsed form."""

    def is_signed_with(self, token: str, url: str, form: Mapping[str, str], headers: Mapping[str, str]) -> bool:
        """Return whether this token of an account signed the request, whose URL is exactly `url`.

        For clients without an account. False proves nothing: `verify` decides.
        """
        return False

    def is_signed(self, headers: Mapping[str, str]) -> bool:
        """Return whether the request carries a signature, valid or not."""
        return True

    def names_account(self, form: Mapping[str, str]) -> bool:
        """Return whether the request names this account. Strangers don't know its name."""
        return True

    @abstractmethod
    def parse(self, kind: str, step: int, form: Mapping[str, str]) -> WebhookEvent:
        """Parse a verified webhook about a call. Never raises: invalid values are omitted.

        `kind`: voice, gather, connected, agent, stream or status. `step` counts the documents of a call.
        """

    def parse_text(self, form: Mapping[str, str]) -> TextReport:
        """Parse a verified webhook about an outbound text. Never raises."""
        raise NotImplementedError

    def parse_incoming(self, form: Mapping[str, str]) -> IncomingWebhook:
        """Parse a verified webhook about one of our numbers. Never raises."""
        raise NotImplementedError

    def render_nothing(self) -> tuple[bytes, str]:
        """Return an empty document and its content type."""
        raise NotImplementedError

    @abstractmethod
    def render(self, prompt: VoicePrompt, answer_url: str) -> tuple[bytes, str]:
        """Return the prompt as the provider's document, and its content type. Keys are posted to `answer_url`."""

    def render_connection(
        self, connection: Connection, from_phone: str, legs: Sequence[LegUrls], result_url: str
    ) -> tuple[bytes, str]:
        """Return a document that connects the call, and its content type. `legs`: the URLs of each leg, in order.

        The end of the connection is posted to `result_url`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support connecting a call.")

    def render_agent(self, agent: AgentConnection, name: str, urls: AgentUrls) -> tuple[bytes, str]:
        """Return a document that connects the call to a voice agent, and its content type.

        `name` identifies the connection within the account's calls.
        """
        raise NotImplementedError(f"{type(self).__name__} does not support voice agents.")

    def render_hand_over(self, url: str) -> tuple[bytes, str]:
        """Return a document that redirects to the one at `url`, and its content type."""
        raise NotImplementedError(f"{type(self).__name__} does not support redirecting a call.")
