"""Decide which URLs, ports and addresses the guarded HTTP client may call, without network access.

One parser reads the URL, both for these rules and for the connection, so that the two cannot disagree on the host.
"""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Iterable

from django.conf import settings
from django.core.exceptions import ValidationError
from yarl import URL

from dispatch.core.http import request_errors  # noqa: F401  (registers the forms)
from dispatch.core.languages import gettext as _
from dispatch.core.stored_texts import translate_stored

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MAX_URL_LENGTH = 2048
LOWEST_FREE_PORT = 1024
ALWAYS_ALLOWED_PORTS = frozenset({80, 443})
# Ports from 1024 on whose protocols could mistake a request's text for commands.
REFUSED_PORTS = frozenset({2049, 5060, 5061, 6000, 6379, 6380, 11211, *range(6665, 6670), 6697, 16379, 26379})


class ForbiddenTarget(Exception):
    """This target is not allowed, so nothing was sent and retrying does not help. The message gives the reason."""


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(text) for text in texts)


# Never reachable for tenants, even where private addresses are allowed: metadata services, "this host", multicast.
NEVER = _networks(
    "0.0.0.0/8", "169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32",
    "224.0.0.0/4", "240.0.0.0/4", "::/128", "fe80::/10", "ff00::/8", "fd00:ec2::/32", "fd20:ce::/32",
)  # fmt: skip
PRIVATE = _networks(
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7"
)
# The other networks that IANA lists as not globally reachable, and relays to embedded addresses.
SPECIAL_V4 = _networks(
    "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.175.48.0/24",
    "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24",
)  # fmt: skip
# IPv6 is public only inside 2000::/3. That excludes mapped and compatible IPv4, NAT64 (64:ff9b::/96 and
# 64:ff9b:1::/48), unique local, site local, link local and multicast. Inside it: Teredo, 6to4, documentation.
PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
SPECIAL_V6 = _networks("2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3fff::/20")

_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")


def check_url(url: str, extra_ports: Iterable[int] = ()) -> URL:
    """Return the parsed URL, if its form is allowed. Raises ForbiddenTarget.

    Rejected: schemes other than http and https, user names, hosts that are not a plain name or address, addresses
    in unusual notation (2130706433, 0177.1, 127.1), and ports reserved for other protocols.
    """
    return _checked(url, frozenset(extra_ports))


@functools.lru_cache(maxsize=4096)  # the same few URLs are called repeatedly
def _checked(url: str, extra_ports: frozenset[int]) -> URL:
    if len(url) > MAX_URL_LENGTH:
        raise ForbiddenTarget(f"the URL is longer than {MAX_URL_LENGTH} characters")
    if any(character <= " " or character == "\\" or character == "\x7f" for character in url):
        raise ForbiddenTarget("the URL contains a space, a control character or a backslash")
    try:
        parsed = URL(url)
        host, port = (parsed.raw_host or "").lower(), parsed.port
    except (ValueError, TypeError) as error:
        raise ForbiddenTarget(f"not a valid URL: {error}") from None
    if parsed.scheme not in ("http", "https"):
        raise ForbiddenTarget("the URL must use http or https")
    if "@" in re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0]:
        raise ForbiddenTarget("the URL contains a user name or password")
    _check_host(host)
    _check_port(port, extra_ports)
    return parsed


def _check_host(host: str) -> None:
    if not host:
        raise ForbiddenTarget("the URL has no host")
    if parse_literal(host) is not None:
        return
    labels = host.removesuffix(".").split(".")
    # If the last label is numeric, resolvers read the host as an IPv4 address in one of many notations.
    if re.fullmatch(r"\d+|0x[0-9a-f]*", labels[-1]):
        raise ForbiddenTarget("an IPv4 address must be written as four decimal numbers")
    if len(host) > 253 or not all(_NAME.fullmatch(label) for label in labels):
        raise ForbiddenTarget("the host is not a valid name or address")


def _check_port(port: int | None, extra_ports: frozenset[int]) -> None:
    if port is None or not 0 < port < 65536:
        raise ForbiddenTarget("the URL has no valid port")
    if port in ALWAYS_ALLOWED_PORTS or port in extra_ports:
        return
    if port < LOWEST_FREE_PORT or port in REFUSED_PORTS:
        raise ForbiddenTarget(f"port {port} is reserved for a protocol other than HTTP")


def parse_literal(host: str) -> Address | None:
    """Parse an address in the usual notation; return None if `host` is a name or uses another notation."""
    if "%" in host:  # a zone: only link-local addresses have one
        return None
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def check_address(address: str, allowed: Iterable[Network] = (), *, allow_private: bool = False) -> None:
    """Pass if `address` is public, is in one of `allowed`, or is private and `allow_private` is set.

    Raises ForbiddenTarget. `allow_private` covers private, loopback and shared (CGNAT) addresses, and never
    metadata services, link-local, multicast or "this host" (0.0.0.0); only `allowed` can permit those.
    """
    parsed = parse_literal(address)
    if parsed is None:
        raise ForbiddenTarget(f"{address} is not an address")
    if _within(parsed, allowed):
        return
    if _within(parsed, NEVER):
        raise ForbiddenTarget(f"{address} is a link-local, metadata, multicast or reserved address")
    if _within(parsed, PRIVATE):
        if allow_private:
            return
        raise ForbiddenTarget(f"{address} is a private or loopback address")
    special = SPECIAL_V4 if parsed.version == 4 else SPECIAL_V6
    if _within(parsed, special) or (parsed.version == 6 and parsed not in PUBLIC_V6):
        raise ForbiddenTarget(f"{address} is not a public address")


def _within(address: Address, networks: Iterable[Network]) -> bool:
    return any(address in network for network in networks if network.version == address.version)


@functools.lru_cache(maxsize=8)
def parse_networks(texts: tuple[str, ...]) -> tuple[Network, ...]:
    """Parse networks in the settings. Raises ValueError that names the invalid network."""
    return tuple(ipaddress.ip_network(text.strip()) for text in texts if text.strip())


def check_target_url(url: str) -> None:
    """Check the URL's form, and its address if the host is one. Names are resolved and checked at every call.

    Raises ValidationError.
    """
    try:
        host = check_url(url, settings.HTTP_ALLOWED_PORTS).raw_host or ""
        if parse_literal(host) is not None:
            check_address(host, parse_networks(tuple(settings.HTTP_ALLOWED_NETWORKS)))
    except ForbiddenTarget as error:
        words = _("This URL can't be called: {why}.").format(why=translate_stored(str(error)))
        raise ValidationError(words, code="refused") from None
