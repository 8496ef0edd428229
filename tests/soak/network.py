"""Hosts in separate network namespaces, whose network can be cut, slowed or made lossy in each direction.

    with Network(["app", "database"]) as network:
        with network.inside("app"):
            ...  # sockets and processes of this thread belong to the host
        network.cut("app", "database")

All addresses are in the namespaces; nothing of this machine's network is changed. Each host has a loopback
interface and one TUN device, and `tests.soak.switch` carries packets between the devices.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.processes import ROOT

SUBNET = "10.231.7"
BITS = 24
MTU = 16_000  # few, large packets: each costs the switch time
CLONE_NEWNET = 0x4000_0000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x4004_54CA, 0x0001, 0x1000

_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """Return why namespaces cannot be made on this machine, or an empty text."""
    if not sys.platform.startswith("linux"):
        return "network namespaces require Linux"
    if shutil.which("ip") is None:
        return "the command `ip` is missing (Debian: apt install iproute2)"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing or not accessible: run as root, on a kernel with TUN devices"
    name = f"dispatch-probe-{os.getpid()}"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        return f"network namespaces cannot be made; root rights are required: {error.stderr.strip()}"
    try:
        with _entered(name), suppress(OSError):
            os.close(_tun_device())
            return ""
        return "a TUN device cannot be made in a network namespace"
    finally:
        _ip("netns", "delete", name)


class Network:
    """The hosts by name. `addresses` has the address of each."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self.addresses = {host: f"{SUBNET}.{n}" for n, host in enumerate(hosts, 1)}
        self._stack = ExitStack()
        self._rules: dict[tuple[str, str], tuple[float, float]] = {}

    def __enter__(self) -> Network:
        with self._stack:
            devices = {host: self._make_host(host) for host in self.addresses}
            self._switch = self._start_switch(devices)
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    @contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Let this thread, and the threads and processes that it starts, be on this host."""
        with _entered(self._namespace(host)):
            yield

    def cut(self, host: str, *others: str) -> None:
        """Lose every packet between this host and the others (default: all), without a reset."""
        for other in others or self._all_but(host):
            self.shape(host, other, lost=1.0)

    def cut_one_way(self, source: str, target: str) -> None:
        """Lose every packet from `source` to `target`; the opposite direction works."""
        self._rules[source, target] = (1.0, 0.0)
        self._apply()

    def shape(self, host: str, other: str, *, lost: float = 0.0, delay_s: float = 0.0) -> None:
        """Lose this share of the packets, and delay the rest, in both directions."""
        self._rules[host, other] = self._rules[other, host] = (lost, delay_s)
        self._apply()

    def heal(self) -> None:
        self._rules.clear()
        self._apply()

    def _all_but(self, host: str) -> list[str]:
        return [name for name in self.addresses if name != host]

    def _namespace(self, host: str) -> str:
        return f"dispatch-{os.getpid()}-{host}"

    def _make_host(self, host: str) -> int:
        """Make the host's namespace; return the other end of its interface."""
        namespace = self._namespace(host)
        _ip("netns", "add", namespace)
        self._stack.callback(_ip, "netns", "delete", namespace)
        with _entered(namespace):
            device = _tun_device()
        self._stack.callback(os.close, device)
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "address", "add", f"{self.addresses[host]}/{BITS}", "dev", "eth0")
        _ip("-n", namespace, "link", "set", "eth0", "up", "mtu", str(MTU))
        return device

    def _start_switch(self, devices: dict[str, int]) -> subprocess.Popen[bytes]:
        arguments = [f"{self.addresses[host]}={device}" for host, device in devices.items()]
        switch = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.switch", *arguments],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=tuple(devices.values()),
        )  # fmt: skip

        def stop() -> None:
            switch.kill()
            switch.communicate()

        self._stack.callback(stop)
        return switch

    def _apply(self) -> None:
        rules: list[Any] = [
            [self.addresses[source], self.addresses[target], *rule]
            for (source, target), rule in self._rules.items()
        ]
        assert self._switch.stdin
        assert self._switch.stdout
        self._switch.stdin.write(json.dumps(rules).encode() + b"\n")
        self._switch.stdin.flush()
        assert self._switch.stdout.readline() == b"\n", "the switch has ended"


@contextmanager
def _entered(namespace: str) -> Iterator[None]:
    with Path("/proc/thread-self/ns/net").open() as before, Path(f"/run/netns/{namespace}").open() as wanted:
        _set_namespace(wanted.fileno())
        try:
            yield
        finally:
            _set_namespace(before.fileno())


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns failed")


def _tun_device() -> int:
    """Make the interface eth0 in this thread's namespace; return the descriptor of its other end."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    try:
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"eth0", IFF_TUN | IFF_NO_PI))
    except OSError:
        os.close(device)
        raise
    return device


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
