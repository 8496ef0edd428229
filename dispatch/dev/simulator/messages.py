"""Simulate texts in both directions, with the provider's default handling of STOP, START and HELP.

How a message to a number ends is an object: `do` is `delivered` (default), `undelivered` or `failed` with
`error_code`, `silent` (sent, then no further report), or `refuse` with `code` (no message exists).
"""

from __future__ import annotations

from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from .calls import API_VERSION
from .config import FAILED_OVERFLOW, REFUSED_OVERFLOW, Prices
from .errors import CODES, ApiError
from .formats import mask, new_sid, price, rfc2822
from .twiml import MESSAGE_VERBS, TwimlError, parse
from .webhooks import Attempt

if TYPE_CHECKING:
    from .world import Account, World

STOP = {"STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "REVOKE", "OPTOUT"}
START = {"START", "YES", "UNSTOP"}
HELP = {"HELP", "INFO"}
REPLIES = {
    "stop": "You are unsubscribed and get no more messages from this number. Reply START to subscribe again.",
    "start": "You are subscribed again to messages from this number. Reply HELP for help, STOP to unsubscribe.",
    "help": "Reply STOP to unsubscribe. Message and data rates may apply.",
}
# GSM 03.38: characters that take one septet, and those that take two.
GSM_CHARACTERS = frozenset(
    "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§"
    "¿abcdefghijklmnopqrstuvwxyzäöñüà"
)
GSM_EXTENSION = frozenset("^{}\\[~]|€\f")
MAX_VALIDITY = 36_000
FATES = {"delivered", "undelivered", "failed", "silent", "refuse"}
CALLBACK_STATES = {"queued", "sent", "delivered", "undelivered", "failed"}


@dataclass
class Message:
    """Hold one text. `statuses` contains every state with simulated seconds since it was created."""

    sid: str
    account_sid: str
    to: str
    from_: str
    body: str
    direction: str
    status: str
    created_at: float
    created_date: float
    updated_date: float
    status_callback: str = ""
    validity_period: int = MAX_VALIDITY
    messaging_service_sid: str | None = None
    sent_date: float | None = None
    error_code: int | None = None
    statuses: list[dict[str, Any]] = field(default_factory=list)
    webhooks: list[dict[str, Any]] = field(default_factory=list)
    prices: Prices = field(default_factory=Prices)
    has_price: bool = False
    outbox: deque[dict[str, str]] = field(default_factory=deque)

    @property
    def segments(self) -> int:
        """The number of SMS that carry it: of 160 septets, or of 70 units of UTF-16 with other characters."""
        if set(self.body) <= GSM_CHARACTERS | GSM_EXTENSION:
            length, single, part = len(self.body) + sum(char in GSM_EXTENSION for char in self.body), 160, 153
        else:
            length, single, part = len(self.body.encode("utf-16-le")) // 2, 70, 67
        return 1 if length <= single else -(-length // part)

    def resource(self) -> dict[str, Any]:
        """Return the message as the provider's REST API shows it."""
        uri = f"/{API_VERSION}/Accounts/{self.account_sid}/Messages/{self.sid}"
        return {
            "sid": self.sid,
            "account_sid": self.account_sid,
            "to": self.to,
            "from": self.from_,
            "body": self.body,
            "status": self.status,
            "direction": self.direction,
            "num_segments": str(self.segments),
            "num_media": "0",
            "messaging_service_sid": self.messaging_service_sid,
            "error_code": self.error_code,
            "error_message": None if self.error_code is None else f"Delivery failed, error {self.error_code}",
            "price": price(self.prices.per_segment, self.segments) if self.has_price else None,
            "price_unit": self.prices.currency,
            "api_version": API_VERSION,
            "date_created": rfc2822(self.created_date),
            "date_sent": rfc2822(self.sent_date),
            "date_updated": rfc2822(self.updated_date),
            "uri": f"{uri}.json",
            "subresource_uris": {"media": f"{uri}/Media.json"},
        }

    def history(self) -> dict[str, Any]:
        """Return the message as the control API shows it."""
        data = asdict(self)
        data["from"] = data.pop("from_")
        del data["outbox"]
        return data

    def record(self, attempt: Attempt) -> None:
        self.webhooks.append({**vars(attempt)})


def check_fate(data: Any) -> dict[str, Any]:
    """Check how texts to a number end. Raise ValueError naming the error."""
    if not isinstance(data, dict) or data.get("do") not in FATES:
        raise ValueError(f"the fate of texts needs 'do', one of {sorted(FATES)}; got {data!r}")
    if set(data) - {"do", "error_code", "code"}:
        raise ValueError(f"unknown keys {sorted(set(data) - {'do', 'error_code', 'code'})}")
    if data["do"] == "refuse" and data.get("code", 21211) not in CODES:
        raise ValueError(f"unknown error code {data['code']}")
    return data


def fate(world: World, number: str) -> dict[str, Any]:
    """Return how texts to this number end."""
    return world.texts.get(number) or world.texts.get("default") or {"do": "delivered"}


def send(
    world: World,
    account: Account,
    to: str,
    from_: str,
    body: str,
    callback: str = "",
    validity_period: int = MAX_VALIDITY,
    service: str = "",
) -> Message:
    """Queue a message from the account; its callbacks follow."""
    wait = _queue_wait(world, account, from_)
    overflows = wait > account.config.text_queue_s
    if overflows and account.config.text_overflow == REFUSED_OVERFLOW:
        raise ApiError(REFUSED_OVERFLOW, from_)
    message = _new(world, account, to, from_, body, "outbound-api", "queued")
    message.messaging_service_sid = service or None
    message.status_callback, message.validity_period = callback, validity_period
    _notify(world, account, message)
    if overflows:
        _travel(world, account, message, [("failed", FAILED_OVERFLOW)])
    elif wait > validity_period:
        world.later(validity_period, lambda: _travel(world, account, message, [("failed", 30036)]))
    else:
        if pace := account.config.text_segments_per_second:
            account.texts_until[from_] = world.clock.now() + wait + message.segments / pace
        stations = _stations(world, to, from_)
        if wait:
            world.later(wait, lambda: _travel(world, account, message, stations))
        else:
            _travel(world, account, message, stations)
    return message


def _queue_wait(world: World, account: Account, from_: str) -> float:
    """Return the simulated seconds that a text waits behind those that the number has not sent yet."""
    return max(0.0, account.texts_until.get(from_, 0.0) - world.clock.now())


def _stations(world: World, to: str, from_: str) -> list[tuple[str, int | None]]:
    """Return the statuses on the way of a text, the last one with its error code."""
    if (filtered := world.faults.text(to, from_)) is not None:
        return [("sending", None), ("sent", None), ("undelivered", filtered.code)]
    text_fate = fate(world, to)
    do = text_fate["do"]
    if do == "failed":
        return [("failed", int(text_fate.get("error_code", 30008)))]
    if do == "undelivered":
        return [("sending", None), ("sent", None), ("undelivered", int(text_fate.get("error_code", 30003)))]
    if do == "silent":
        return [("sending", None), ("sent", None)]
    return [("sending", None), ("sent", None), ("delivered", None)]


def _travel(world: World, account: Account, message: Message, stations: list[tuple[str, int | None]]) -> None:
    if not stations:
        return

    def arrive() -> None:
        suspended = not account.config.is_active and message.status in {"queued", "sending"}
        status, error = ("failed", 30002) if suspended else stations[0]
        message.status, message.error_code = status, error
        message.updated_date = world.clock.wall()
        if status == "sent":
            message.sent_date = message.updated_date
            _charge(world, message)
        _record_status(world, message)
        _notify(world, account, message)
        if not suspended:
            _travel(world, account, message, stations[1:])

    world.later(world.timing.message_step, arrive)


def _charge(world: World, message: Message) -> None:
    """Set the price of a text that was sent or received, some time later."""

    def show() -> None:
        message.has_price = True

    world.later(message.prices.after, show)


def _new(world: World, account: Account, to: str, from_: str, body: str, direction: str, status: str) -> Message:
    wall = world.clock.wall()
    sid = new_sid("SM")
    message = Message(sid, account.config.sid, to, from_, body, direction, status, world.clock.now(), wall, wall)
    message.prices = account.config.prices
    world.messages[sid] = message
    _record_status(world, message)
    return message


def _change(message: Message) -> dict[str, Any]:
    sid, status, to, from_ = message.sid, message.status, message.to, message.from_
    phone = from_ if message.direction == "inbound" else to
    return {"kind": "message", "sid": sid, "status": status, "to": to, "from": from_, "phone": phone}


def _record_status(world: World, message: Message) -> None:
    at = round(world.clock.now() - message.created_at, 3)
    message.statuses.append({"at": at, "status": message.status})
    world.feed.publish(_change(message))
    world.log(f"{message.sid[:10]} {mask(message.from_)} > {mask(message.to)} text {message.status}")


def _notify(world: World, account: Account, message: Message) -> None:
    """Report the status: one report at a time and in order for each message, unless a fault says otherwise."""
    if not message.status_callback or message.status not in CALLBACK_STATES:
        return
    params = {
        "MessageSid": message.sid,
        "SmsSid": message.sid,
        "AccountSid": message.account_sid,
        "MessageStatus": message.status,
        "SmsStatus": message.status,
        "To": message.to,
        "From": message.from_,
        "ApiVersion": API_VERSION,
    }
    if message.error_code is not None:
        params["ErrorCode"] = str(message.error_code)
    fault = world.faults.callback(message.status, message.to, message.from_)
    kind = fault.kind if fault else ""
    if kind == "lose":
        message.webhooks.append({"purpose": "status", "fault": "lose", "params": params})
        return
    if kind == "overlap":
        world.spawn(_report(world, account, message, params))
        return
    if kind in {"delay", "reorder"} and fault is not None:
        wait = fault.span() if kind == "delay" else 1.5 * world.timing.message_step
        world.later(wait, lambda: world.spawn(_report(world, account, message, params)))
        return
    idle = not message.outbox
    message.outbox.extend([params, params] if kind == "duplicate" else [params])
    if idle:
        world.spawn(_drain(world, account, message))


async def _drain(world: World, account: Account, message: Message) -> None:
    while message.outbox:
        await _report(world, account, message, message.outbox[0])
        message.outbox.popleft()


async def _report(world: World, account: Account, message: Message, params: dict[str, str]) -> None:
    await _post(world, account, message, message.status_callback, "POST", params, "status")


async def _post(
    world: World, account: Account, message: Message, url: str, method: str, params: dict[str, str], purpose: str
) -> bytes:
    fault = world.faults.webhook(purpose, message.to, message.from_)
    if fault is not None and fault.kind == "webhook_lost":
        message.record(Attempt(purpose, method, url, params, 1, 0, "ct", 0.0))
        return b""
    token = account.config.auth_token
    late = fault.span() if fault is not None else 0.0
    reply = await world.webhooks.send(token, url, method, params, purpose, message.record, late)
    world.feed.publish(_change(message))
    if reply.error not in {"", "ct", "rt"}:
        world.complain("number", f"{url} cannot be called: {reply.error}")
    return reply.body if reply.ok else b""


def receive(world: World, account: Account, to: str, from_: str, body: str) -> Message:
    """Receive a person's text to one of the account's numbers: handle opt-outs, then post it to the SmsUrl."""
    message = _new(world, account, to, from_, body, "inbound", "received")
    message.sent_date = message.created_date
    _charge(world, message)
    word = body.strip().upper()
    pair = (to, from_)
    answer = ""
    if word in STOP:
        account.opted_out.add(pair)
        answer = "stop"
    elif word in START:
        answer = "start" if pair in account.opted_out else ""
        account.opted_out.discard(pair)
    elif word in HELP:
        answer = "help"
    if answer:
        reply = _new(world, account, from_, to, REPLIES[answer], "outbound-reply", "queued")
        _travel(world, account, reply, _stations(world, from_, to))
    number = account.numbers.get(to)
    if number is not None and number.sms_url:
        world.spawn(_deliver(world, account, message, number.sms_url, number.sms_method))
    return message


async def _deliver(world: World, account: Account, message: Message, url: str, method: str) -> None:
    params = {
        "MessageSid": message.sid,
        "SmsSid": message.sid,
        "SmsMessageSid": message.sid,
        "AccountSid": message.account_sid,
        "From": message.from_,
        "To": message.to,
        "Body": message.body,
        "NumMedia": "0",
        "NumSegments": str(message.segments),
        "SmsStatus": "received",
        "ApiVersion": API_VERSION,
    }
    document = await _post(world, account, message, url, method, params, "sms")
    if not document.strip():
        return
    try:
        verbs = parse(document, MESSAGE_VERBS)
    except TwimlError as error:
        world.complain("twiml", f"{error.code} {error} (reply to a text)")
        return
    for verb in verbs:
        if verb.name != "Message":
            world.complain("twiml", f"{verb.name} in the reply to a text is not simulated")
            continue
        to = verb.attributes.get("to", message.from_)
        reply = _new(
            world, account, to, verb.attributes.get("from", message.to), verb.text, "outbound-reply", "queued"
        )
        if (reply.from_, to) in account.opted_out:
            reply.status, reply.error_code = "failed", 21610
            _record_status(world, reply)
        else:
            _travel(world, account, reply, _stations(world, to, reply.from_))
