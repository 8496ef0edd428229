"""What telephony asks of a telephone provider, in our words. Another provider is one new module beside `twilio`,
with a `make(account)` that returns a Provider."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dispatch.telephony.purposes import Prompt
from dispatch.telephony.rules import Listed


@dataclass(frozen=True)
class Submitted:
    """The provider took it. `status` in our words, usually submitted."""

    sid: str
    status: str = "submitted"


@dataclass(frozen=True)
class Rejected:
    """The provider refused it: nothing was made. `permanent`: it will refuse this number always.
    `kind`: number, permission, configuration, opted_out or other."""

    permanent: bool
    code: str
    message: str
    kind: str = "other"


@dataclass(frozen=True)
class RateLimited:
    """It was certainly not processed and may be sent again, after `retry_after_s`."""

    retry_after_s: float
    reason: str = ""


@dataclass(frozen=True)
class Unknown:
    """Nobody knows whether it was made: never send it again."""

    reason: str


Outcome = Submitted | Rejected | RateLimited | Unknown


@dataclass(frozen=True)
class Order:
    """A call to place. The URLs carry our own call id. The request must have left within `leave_within_s`.
    `detect_machine`: say in `answered_by` whether a person or a machine answered."""

    to: str
    from_: str
    voice_url: str
    status_url: str
    ring_timeout_s: int
    time_limit_s: int
    leave_within_s: float
    detect_machine: bool = False


@dataclass(frozen=True)
class Report:
    """What the provider says about a call. `status` in our words; None: nothing that we know."""

    sid: str
    status: str | None
    duration_s: int | None = None
    answered_by: str = ""
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True)
class Hook(Report):
    """A verified webhook. `key` makes it one of its kind for its call; `digits` were pressed."""

    key: str = ""
    kind: str = "status"
    account_sid: str = ""
    sequence: int | None = None
    digits: str = ""
    payload: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TextReport:
    """What the provider says about a text. `status` in our words; None: nothing that we know."""

    sid: str
    status: str | None
    account_sid: str = ""
    error_code: str = ""
    error_message: str = ""


@dataclass(frozen=True)
class Incoming:
    """A verified webhook about one of our numbers: somebody texts it (`body`) or calls it (`keys`, `ended`).
    `from_` is empty when the caller withholds it."""

    sid: str
    account_sid: str
    to: str
    from_: str
    body: str = ""
    keys: str = ""
    ended: bool = False
    duration_s: int | None = None


@dataclass(frozen=True)
class ListedText(Listed):
    """A text as the provider lists it."""

    body: str = ""


class CallGone(Exception):
    """The provider does not know the call."""


class ProviderTrouble(Exception):
    """The provider gave no usable answer; ask again later."""


class Provider(ABC):
    """One account at one provider. Not shared between threads (see `providers.for_account`)."""

    # Whether `place_async` is there, for who asks for many calls at once; else `place` runs in threads.
    is_async = False

    @abstractmethod
    def place(self, order: Order) -> Outcome:
        """Asks for a call, once. Never raises."""

    async def place_async(self, order: Order) -> Outcome:
        """As `place`, in an event loop."""
        raise NotImplementedError

    @abstractmethod
    def hang_up(self, sid: str) -> Report:
        """Ends the call, however far it is, and says where it stands then. Raises CallGone, ProviderTrouble."""

    @abstractmethod
    def fetch(self, sid: str) -> Report:
        """Where the call stands. Raises CallGone, ProviderTrouble."""

    @abstractmethod
    def find_calls(self, to: str, from_: str) -> list[Listed]:
        """The latest calls between the two. Raises ProviderTrouble."""

    @abstractmethod
    def send_text(
        self, to: str, from_: str, body: str, status_url: str = "", leave_within_s: float | None = None
    ) -> Outcome:
        """Sends an SMS, once. Never raises."""

    def find_texts(self, to: str, from_: str) -> list[ListedText]:
        """The latest texts between the two. Raises ProviderTrouble."""
        raise ProviderTrouble(f"{type(self).__name__} lists no texts.")

    def about(self, code: str) -> str:
        """What one of its error codes is about, as `Rejected.kind`."""
        return "other"

    @abstractmethod
    def verify(self, url: str, form: Any, headers: Mapping[str, str]) -> bool:
        """Whether the account signed this request. `form` as the framework parsed it."""

    @abstractmethod
    def parse(self, kind: str, step: int, form: Mapping[str, str]) -> Hook:
        """A verified webhook's meaning. `kind`: voice, gather or status; `step` counts a call's documents.
        Never raises: what makes no sense is left out."""

    def parse_text(self, form: Mapping[str, str]) -> TextReport:
        """A verified webhook about one of our texts. Never raises."""
        raise NotImplementedError

    def parse_incoming(self, form: Mapping[str, str]) -> Incoming:
        """A verified webhook about one of our numbers. Never raises."""
        raise NotImplementedError

    def render_nothing(self) -> tuple[bytes, str]:
        """The document that asks for nothing, and its content type."""
        raise NotImplementedError

    @abstractmethod
    def render(self, prompt: Prompt, answer_url: str) -> tuple[bytes, str]:
        """The prompt as the provider's document and its content type; keys are posted to `answer_url`."""

    def render_hand_over(self, url: str) -> tuple[bytes, str]:
        """The document that goes on with the one at `url`, and its content type."""
        raise NotImplementedError(f"{type(self).__name__} cannot hand a call over.")
