"""Forward IP packets between the hosts of a chaos test, or lose and delay them.

Each host's only interface is a TUN device, whose other end this process has. It therefore needs neither netem nor
iptables. Run by `tests.soak.network`: the arguments are `address=descriptor`, one per host. Each line on standard
input is the complete list of rules as JSON, `[[from, to, share of packets lost, delay in seconds], ...]`, and is
answered with a line once it is in force. Each rule is for one direction. The process ends with its input.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import sys
import time
from contextlib import suppress

MAX_PACKET_BYTES = 65_536
SOURCE, DESTINATION = slice(12, 16), slice(16, 20)  # in the header of IPv4

Rules = dict[tuple[bytes, bytes], tuple[float, float]]


def read_rules(line: bytes) -> Rules:
    return {(_packed(a), _packed(b)): (lost, delay_s) for a, b, lost, delay_s in json.loads(line)}


def run(devices: dict[bytes, int]) -> None:
    rules: Rules = {}
    delayed: list[tuple[float, int, int, bytes]] = []  # until, number, device, packet
    number = 0
    poll = select.epoll()
    for device in devices.values():
        poll.register(device, select.EPOLLIN)
    poll.register(0, select.EPOLLIN)
    while True:
        timeout = max(0.0, delayed[0][0] - time.monotonic()) if delayed else -1
        for ready, _ in poll.poll(timeout):
            if ready == 0:
                line = sys.stdin.buffer.readline()
                if not line:
                    return
                rules = read_rules(line)
                os.write(1, b"\n")
                continue
            packet = os.read(ready, MAX_PACKET_BYTES)
            target = devices.get(packet[DESTINATION]) if packet[0] >> 4 == 4 else None
            if target is None:
                continue
            lost, delay_s = rules.get((packet[SOURCE], packet[DESTINATION]), (0.0, 0.0))
            if lost and random.random() < lost:
                continue
            if delay_s:
                number += 1
                heapq.heappush(delayed, (time.monotonic() + delay_s, number, target, packet))
            else:
                _send(target, packet)
        while delayed and delayed[0][0] <= time.monotonic():
            _, _, target, packet = heapq.heappop(delayed)
            _send(target, packet)


def _send(device: int, packet: bytes) -> None:
    with suppress(BlockingIOError):  # a full queue loses packets, as in life
        os.write(device, packet)


def _packed(address: str) -> bytes:
    return bytes(map(int, address.split(".")))


if __name__ == "__main__":
    pairs = (argument.split("=") for argument in sys.argv[1:])
    run({_packed(address): int(device) for address, device in pairs})
