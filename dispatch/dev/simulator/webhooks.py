"""Send webhooks to the user's server: signed, retried by the URL's overrides, to loopback only.

The overrides are in the URL's fragment: rc (retries, default 1), rp (of ct, rt, 4xx, 5xx, all; default ct), ct,
rt, tt (connect, read and total time-outs in ms; 5000, 15000, 15000). All times are simulated.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import ipaddress
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import parse_qsl, urlencode, urlsplit

import aiohttp
from yarl import URL

from .clock import Clock

OVERRIDES = {"rc": (0, 5, 1), "ct": (100, 10_000, 5000), "rt": (100, 15_000, 15_000), "tt": (100, 15_000, 15_000)}
IGNORED_OVERRIDES = {"e", "sni"}
POLICIES = {"ct", "rt", "4xx", "5xx", "all"}
MAX_BODY = 131_072
MAX_MEDIA = 40 * 2**20
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class Reply:
    """Hold the server's response. Without one, `status` is 0 and `error` is ct or rt."""

    status: int
    body: bytes = b""
    content_type: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300


@dataclass(frozen=True)
class Attempt:
    """Record one request, for the history of a call or message."""

    purpose: str
    method: str
    url: str
    params: dict[str, str]
    number: int
    status: int
    error: str
    seconds: float


def signature(token: str, url: str, params: dict[str, str]) -> str:
    """Return the X-Twilio-Signature: over the full URL without fragment, then the sorted form fields."""
    text = url.partition("#")[0] + "".join(key + params[key] for key in sorted(params))
    return base64.b64encode(hmac.new(token.encode(), text.encode(), hashlib.sha1).digest()).decode()


@lru_cache(4096)
def overrides(url: str) -> tuple[Mapping[str, int], frozenset[str]]:
    """Return numbers and retry policy from the fragment. Raise ValueError for an unknown one."""
    numbers = {name: default for name, (_, _, default) in OVERRIDES.items()}
    policy = frozenset({"ct"})
    for key, value in parse_qsl(urlsplit(url).fragment, keep_blank_values=True):
        if key == "rp":
            policy = frozenset(value.split(","))
            if not policy <= POLICIES:
                raise ValueError(f"rp={value} is not of {sorted(POLICIES)}")
        elif key in OVERRIDES:
            low, high, _ = OVERRIDES[key]
            if not value.isdigit() or not low <= int(value) <= high:
                raise ValueError(f"{key}={value} is not within {low} and {high}")
            numbers[key] = int(value)
        elif key not in IGNORED_OVERRIDES:
            raise ValueError(f"unknown connection override {key!r}")
    return numbers, policy


def is_loopback(host: str) -> bool:
    """Return whether the host is this machine. Decided by name, without a resolver."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@lru_cache(4096)
def url_fault(url: str, allow_remote: bool) -> str:
    """Return the reason that this URL cannot be called, or an empty string."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
        overrides(url)
    except ValueError as error:
        return str(error)
    if parts.scheme not in {"http", "https"} or not parts.hostname or not port_ok or any(c.isspace() for c in url):
        return f"{url!r} is not an absolute http(s) URL"
    if not allow_remote and not is_loopback(parts.hostname):
        return f"{parts.hostname} is not this machine: the simulator calls loopback only"
    return ""


class Webhooks:
    """Send all webhooks over one keep-alive client session."""

    def __init__(self, clock: Clock, floor: float, allow_remote: bool) -> None:
        self.clock = clock
        self.floor = floor
        self.allow_remote = allow_remote
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        # Shorter than the five seconds after which common servers close an idle connection.
        connector = aiohttp.TCPConnector(limit=256, keepalive_timeout=2.0)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"User-Agent": "TwilioProxy/1.1", "Accept": "*/*"},
            trust_env=False,
        )

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def open_socket(self, token: str, url: str) -> aiohttp.ClientWebSocketResponse:
        """Open a WebSocket, signed over its URL as by the provider. Raises OSError and ClientError."""
        host = urlsplit(url).hostname or ""
        if not self.allow_remote and not is_loopback(host):
            raise OSError(f"{host} is not this machine: the simulator calls loopback only")
        assert self._session is not None
        return await self._session.ws_connect(
            URL(url, encoded=True),
            headers={"X-Twilio-Signature": signature(token, url, {})},
            timeout=aiohttp.ClientWSTimeout(ws_close=1.0),
            max_msg_size=1 << 20,
        )

    async def idle(self) -> None:
        """Return when no webhook is in progress."""
        await self._idle.wait()

    async def send(
        self,
        token: str,
        url: str,
        method: str,
        params: dict[str, str],
        purpose: str,
        record: Callable[[Attempt], None],
        late: float = 0.0,
    ) -> Reply:
        """Send until there is a response or the overrides allow no more retries.

        Every attempt is recorded. `late`: simulated seconds by which each answer arrives later.
        """
        self.in_flight += 1
        self._idle.clear()
        try:
            return await self._send(token, url, method, params, purpose, record, late)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()

    async def _send(
        self,
        token: str,
        url: str,
        method: str,
        params: dict[str, str],
        purpose: str,
        record: Callable[[Attempt], None],
        late: float,
    ) -> Reply:
        fault = url_fault(url, self.allow_remote)
        if fault:
            record(Attempt(purpose, method, url, params, 1, 0, fault, 0.0))
            return Reply(0, error=fault)
        numbers, policy = overrides(url)
        target = url.partition("#")[0]
        if method == "GET":
            target += ("&" if "?" in target else "?") + urlencode(params)
            headers = {"X-Twilio-Signature": signature(token, target, {})}
            body = b""
        else:
            headers = {"X-Twilio-Signature": signature(token, target, params), "Content-Type": FORM}
            body = urlencode(params).encode()
        give_up = time.monotonic() + self._real(numbers["tt"])
        attempt = 0
        while True:
            attempt += 1
            began = time.monotonic()
            left = min(max(0.05, give_up - began), self._real(numbers["rt"]))
            limits = aiohttp.ClientTimeout(total=left, sock_connect=self._real(numbers["ct"]))
            reply = await self._once(method, target, body, headers, limits)
            if late:
                # the time-outs may be longer than simulated time: a floor gives our server time
                await asyncio.sleep(min(self.clock.real(late), self._real(numbers["rt"])))
                reply = Reply(0, error="rt") if late * 1000 >= numbers["rt"] else reply
            now = time.monotonic()
            record(
                Attempt(purpose, method, url, params, attempt, reply.status, reply.error, round(now - began, 4))
            )
            if attempt > numbers["rc"] or not _again(reply, policy) or now >= give_up:
                return reply
            await asyncio.sleep(min(0.1 * attempt, max(0.0, give_up - now)))

    async def fetch_file(self, token: str, url: str, record: Callable[[Attempt], None]) -> Reply:
        """Get the file of a Play at `url`, once, with a signature, and record the attempt."""
        if fault := url_fault(url, self.allow_remote):
            record(Attempt("play", "GET", url, {}, 1, 0, fault, 0.0))
            return Reply(0, error=fault)
        numbers, _ = overrides(url)
        target, began = url.partition("#")[0], time.monotonic()
        limits = aiohttp.ClientTimeout(total=self._real(numbers["tt"]), sock_connect=self._real(numbers["ct"]))
        headers = {"X-Twilio-Signature": signature(token, target, {})}
        self.in_flight += 1
        self._idle.clear()
        try:
            reply = await self._once("GET", target, b"", headers, limits, MAX_MEDIA)
        finally:
            self.in_flight -= 1
            if not self.in_flight:
                self._idle.set()
        seconds = round(time.monotonic() - began, 4)
        record(Attempt("play", "GET", url, {}, 1, reply.status, reply.error, seconds))
        return reply

    async def _once(
        self,
        method: str,
        target: str,
        body: bytes,
        headers: dict[str, str],
        limits: aiohttp.ClientTimeout,
        most: int = MAX_BODY,
    ) -> Reply:
        assert self._session is not None
        try:
            async with self._session.request(
                method,
                URL(target, encoded=True),
                data=body,
                headers=headers,
                timeout=limits,
                allow_redirects=False,
            ) as response:
                answer = await _read_body(response, most)
                return Reply(response.status, answer, response.content_type)
        except (aiohttp.ClientConnectorError, aiohttp.ServerTimeoutError) as error:
            # A connect time-out is a ServerTimeoutError too, and so is a read time-out between packets.
            connecting = isinstance(error, aiohttp.ClientConnectorError | aiohttp.ConnectionTimeoutError)
            return Reply(0, error="ct" if connecting else "rt")
        except (aiohttp.ClientError, TimeoutError, OSError):
            return Reply(0, error="rt")

    def _real(self, milliseconds: int) -> float:
        return max(min(self.floor, milliseconds / 1000), self.clock.real(milliseconds / 1000))


async def _read_body(response: aiohttp.ClientResponse, most: int) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        if size >= most:
            break
    return b"".join(parts)[:most]


def _again(reply: Reply, policy: frozenset[str]) -> bool:
    if reply.error:
        return reply.error in policy or "all" in policy
    kind = f"{reply.status // 100}xx"
    return kind in {"4xx", "5xx"} and (kind in policy or "all" in policy)
