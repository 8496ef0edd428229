"""Which URLs and addresses may be called."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.core import checks
from dispatch.core.http.ssrf import ForbiddenTarget, check_address, check_url, parse_networks


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/hook",
        "http://example.com:8080/a?b=c#d",
        "https://xn--mnchen-3ya.example/",
        "https://münchen.example/",
        "https://a_b.example./",
        "https://93.184.215.14/",
        "https://[2606:2800:21f:cb07:6820:80da:af6b:8b2c]:8443/",
    ],
)
def test_usual_urls_are_fine(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "//example.com/",
        "example.com/hook",
        "",
        "http://",
        "http:///hook",
        "http://user@example.com/",
        "http://user:secret@example.com/",
        "http://@example.com/",
        "http://example.com@127.0.0.1/",
        "http://example.com\\@127.0.0.1/",
        "http://127.0.0.1\\.example.com/",
        "http://exa mple.com/",
        "http://example.com/\r\nHost: other",
        "http://example.com/\x00",
        "\thttp://example.com/",
        # other spellings of 127.0.0.1
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.1/",
        "http://127.0.0.1./",
        "http://127.0.0.0x1/",
        "http://0/",
        "http://%31%32%37.0.0.1/",
        "http://1.2.3.4.5/",
        "http://256.1.1.1/",
        # invalid hosts
        "http://[fe80::1%25eth0]/",
        "http://[::1/",
        "http://[1.2.3.4]/",
        "http://a..b/",
        "http://-a.example/",
        "http://" + "a" * 64 + ".example/",
        "http://exa*mple.com/",
        # ports
        "http://example.com:0/",
        "http://example.com:22/",
        "http://example.com:25/",
        "http://example.com:6379/",
        "http://example.com:11211/",
        "http://example.com:65536/",
        "http://example.com:-1/",
        "http://example.com:port/",
        "https://example.com/" + "a" * 2048,
    ],
)
def test_urls_that_could_mean_something_else_are_refused(url: str) -> None:
    with pytest.raises(ForbiddenTarget):
        check_url(url)


def test_a_port_can_be_allowed_by_configuration() -> None:
    assert check_url("http://example.com:81/", extra_ports=[81]).port == 81


PRIVATE = ["10.1.2.3", "100.64.0.1", "127.0.0.1", "127.255.255.254", "172.16.0.1", "172.31.255.255", "192.168.1.1",
           "::1", "fc00::1", "fd12:3456::1"]  # fmt: skip
NEVER = ["0.0.0.0", "0.1.2.3", "169.254.169.254", "169.254.0.1", "100.100.100.200", "168.63.129.16",
         "192.0.0.192", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "::", "fe80::1", "febf::1",
         "ff02::1", "fd00:ec2::254", "fd20:ce::254"]  # fmt: skip
SPECIAL = ["192.0.0.8", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.255", "198.51.100.1", "203.0.113.1",
           "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b::808:808",
           "64:ff9b:1::1", "2002:7f00:1::", "2001:0:53aa:64c::1", "2001:db8::1", "3fff::1", "fec0::1", "100::1",
           "5f00::1", "4000::1"]  # fmt: skip


@pytest.mark.parametrize("address", PRIVATE + NEVER + SPECIAL)
def test_addresses_that_are_not_public_are_refused(address: str) -> None:
    with pytest.raises(ForbiddenTarget):
        check_address(address)


@pytest.mark.parametrize("address", ["not-an-address", "", "127.1", "fe80::1%eth0", "0177.0.0.1"])
def test_invalid_address_is_rejected(address: str) -> None:
    with pytest.raises(ForbiddenTarget):
        check_address(address, parse_networks(("0.0.0.0/0", "::/0")), allow_private=True)


@pytest.mark.parametrize(
    "address", ["8.8.8.8", "1.1.1.1", "172.15.255.255", "172.32.0.1", "100.63.255.255", "100.128.0.1",
                "192.167.255.255", "11.0.0.1", "223.255.255.254", "2606:4700::1111", "2a00:1450::1"],
)  # fmt: skip
def test_public_addresses_are_fine(address: str) -> None:
    check_address(address)


def test_allowed_private_networks_do_not_include_metadata() -> None:
    for address in PRIVATE:
        check_address(address, allow_private=True)
    for address in NEVER + SPECIAL:
        with pytest.raises(ForbiddenTarget):
            check_address(address, allow_private=True)


def test_only_the_configured_networks_are_allowed() -> None:
    allowed = parse_networks(("10.20.0.0/16", "fd12::/16"))
    check_address("10.20.3.4", allowed)
    check_address("fd12::5", allowed)
    for address in ("10.21.0.1", "127.0.0.1", "::ffff:10.20.3.4", "fd13::5"):
        with pytest.raises(ForbiddenTarget):
            check_address(address, allowed)


@pytest.mark.parametrize(
    ("networks", "expected"),
    [
        ([], []),
        (["10.20.0.0/16", "fd12::/16"], []),
        (["10.20.0.1/16"], ["dispatch.E060"]),
        (["lan"], ["dispatch.E060"]),
    ],
)
def test_invalid_networks_are_rejected_at_startup(settings: Any, networks: list[str], expected: list[str]) -> None:
    settings.HTTP_ALLOWED_NETWORKS = networks
    assert [message.id for message in checks.called_networks(None)] == expected
