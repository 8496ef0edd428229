"""Read the client's address, by which requests of strangers are limited."""

from __future__ import annotations

import ipaddress

from django.http import HttpRequest

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Prefix of the network that one IPv6 client has to itself, with 2**64 addresses to choose from.
IPV6_PREFIX = 64


def read_address(request: HttpRequest) -> Address | None:
    """Return the client's address, an IPv4 address also if it is written as `::ffff:192.0.2.1`; None: unknown."""
    try:
        address = ipaddress.ip_address(request.META.get("REMOTE_ADDR") or "")
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def limited_address(request: HttpRequest) -> str | None:
    """Return the address under which a client's requests are counted: IPv4, or the /64 network of IPv6.

    None if it is unknown.
    """
    address = read_address(request)
    if address is None or address.version == 4:
        return None if address is None else str(address)
    return str(ipaddress.ip_network((address, IPV6_PREFIX), strict=False).network_address)


def limit_key(request: HttpRequest) -> str:
    """Return `limited_address` as a part of the name of a rate limit."""
    return limited_address(request) or "unknown"
