"""Know whether this process, or only another one, reaches a server outside of the application.

A host can be cut from the phone provider while another host reaches it. Each process records here whether its own
connections succeed. Processes share this in PostgreSQL, but only while one of them fails: a failing process writes
a row, and dispatchers that read it probe the server and write theirs. A process is relieved if another one reaches
all that it reaches, and more. Two processes never relieve each other, so nothing is handed back and forth.

A process hears from others only seconds after its own failure. Until then, it cannot know whether the server or
its own host is the cause, so the failure does not count against the server (`may_be_cut_off`).
"""

from __future__ import annotations

import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError, transaction

from dispatch.core.db import prepared

log = structlog.get_logger(__name__)

# A report counts for this long. Failing processes, and those that can relieve them, repeat theirs (seconds).
FRESH_S = 20.0
# Intervals of the probes of a server, and of the reads of a process without the loop.
PROBE_S, READ_S = 5.0, 5.0
DELETE_AFTER_S = 3600.0
# A server that was reached for this long is steady again (seconds).
STEADY_AFTER_S = 60.0
LOOP_INTERVAL_S = 2.0
# The interval of the loop while some process does not reach a server.
ALERT_INTERVAL_S = 0.5

_DATABASE_NOW = prepared.DB_NOW
_REPORT = f"""
INSERT INTO core_reachability AS r (process, host, server, loops, failing_since, reported_at)
VALUES (
    %(process)s, %(host)s, %(server)s, %(loops)s,
    CASE WHEN %(fails)s::boolean THEN {_DATABASE_NOW} END, {_DATABASE_NOW}
)
ON CONFLICT (process, server) DO UPDATE
SET failing_since = CASE WHEN %(fails)s::boolean THEN coalesce(r.failing_since, excluded.reported_at) END,
    loops = excluded.loops, reported_at = excluded.reported_at
"""
_READ = f"""
SELECT process, host, server, loops, failing_since FROM core_reachability
WHERE reported_at > {_DATABASE_NOW} - make_interval(secs => %(fresh)s::float8)
"""
_DELETE = f"""
DELETE FROM core_reachability WHERE id = ANY(ARRAY(
    SELECT id FROM core_reachability WHERE reported_at < {_DATABASE_NOW} - make_interval(secs => %(age)s::float8)
    ORDER BY id LIMIT 1000 FOR UPDATE SKIP LOCKED
))
"""


@dataclass
class _Server:
    """What this process knows about one server, in monotonic seconds."""

    failing_since: float | None = None
    failed_at: float = float("-inf")  # the last failure
    unsteady_since: float = 0.0  # the first failure after it was steady
    known_at: float = 0.0  # the last result
    probed_at: float = float("-inf")


@dataclass(frozen=True)
class Report:
    """What another process reported a moment ago: the servers that it reaches, and those that it does not."""

    host: str
    loops: frozenset[str]
    reached: frozenset[str]
    failing: frozenset[str]


class Process:
    """The view of one process. `reachability.process` is that of this one; tests make others."""

    def __init__(self, host: str = "") -> None:
        self.host = host or socket.gethostname()
        self.name = f"{self.host}:{os.getpid()}:{uuid.uuid4().hex[:8]}"[:128]
        self.loops: frozenset[str] = frozenset()
        self.probe: Callable[[str], None] | None = None
        self._servers: dict[str, _Server] = {}
        self._probing: set[str] = set()
        self._others: tuple[Report, ...] = ()
        self._read_at = float("-inf")
        self._lock = threading.Lock()

    # --- What this process knows

    def record_success(self, server: str) -> None:
        """Record that a connection to the server was made."""
        known = self._servers.get(server)
        if known is None:  # while all servers are reached, no process tracks any
            return
        known.known_at = time.monotonic()
        if known.failing_since is not None:
            known.failing_since = None
            log.info("server_reached_again", server=server)

    def record_failure(self, server: str, error: object) -> None:
        """Record that no connection to the server could be made."""
        with self._lock:
            known = self._servers.setdefault(server, _Server())
        now = time.monotonic()
        if known.failing_since is None and now - known.failed_at > STEADY_AFTER_S:
            known.unsteady_since = now
        known.known_at = known.failed_at = now
        if known.failing_since is None:
            known.failing_since = now
            log.warning("server_not_reached", server=server, error=str(error)[:200])

    def failing(self) -> frozenset[str]:
        """Return the servers that this process does not reach."""
        known = list(self._servers.items())
        return frozenset(server for server, state in known if state.failing_since is not None)

    def failing_s(self) -> float:
        """Return for how many seconds a server has not been reached; 0 if all are."""
        since = [state.failing_since for state in list(self._servers.values()) if state.failing_since is not None]
        return time.monotonic() - min(since) if since else 0.0

    def is_relieved(self, loop: str) -> bool:
        """Return whether another process runs this loop and reaches what this one does not.

        Does not wait for a server. Reads the reports of others if no loop of this process does.
        """
        failing = self.failing()
        if failing and time.monotonic() - self._read_at > READ_S:
            self._exchange_quietly(failing)
        return self.has_relief(loop)

    def has_relief(self, loop: str) -> bool:
        """Return what `is_relieved` does, as of the last read, which must be recent. Does not use the database."""
        failing = self.failing()
        if not failing or time.monotonic() - self._read_at > FRESH_S:
            return False
        return any(loop in other.loops and _is_better(other, failing) for other in self._others)

    def may_be_cut_off(self, loop: str) -> bool:
        """Return whether a failure to reach a server may be this host's own.

        It may be if another process reaches the server (`is_relieved`), and for PROVIDER_LOST_AFTER_S after the
        first failure of a steady server: others need that time to report.
        """
        if self.is_relieved(loop):
            return True
        failing = [state for state in list(self._servers.values()) if state.failing_since is not None]
        began = max((state.unsteady_since for state in failing), default=float("-inf"))
        return time.monotonic() - began < settings.PROVIDER_LOST_AFTER_S

    def record_silence(self, server: str) -> None:
        """Record that a request was sent and not answered; a probe finds out whether the server is reached."""
        self._start_probes([server])

    # --- Exchange with others

    def step(self) -> bool:
        """Probe the servers that some process does not reach, report the results, and read those of others.

        Return whether there are any.
        """
        self._read()
        wanted = set(self.failing()).union(*(other.failing for other in self._others))
        self._start_probes(wanted)
        self._write(wanted)
        return bool(wanted)

    def _exchange_quietly(self, failing: Iterable[str]) -> None:
        self._read_at = time.monotonic()
        try:
            with transaction.atomic():
                self._write(failing)
                self._read()
        except DatabaseError as error:
            log.warning("reachability_not_exchanged", error=str(error).strip())
        self._start_probes(failing)

    def _read(self) -> None:
        rows = [row for row in prepared.fetch_all(_READ, {"fresh": FRESH_S}) if row[0] != self.name]
        reports = {}
        for process, host, _, loops, _ in rows:
            own = [(server, since) for name, _, server, _, since in rows if name == process]
            reports[process] = Report(
                host,
                frozenset(loops.split()),
                frozenset(server for server, since in own if since is None),
                frozenset(server for server, since in own if since is not None),
            )
        self._others, self._read_at = tuple(reports.values()), time.monotonic()

    def _write(self, servers: Iterable[str]) -> None:
        """Report what is known about these servers; nothing about those that were not tried recently."""
        fresh = time.monotonic() - FRESH_S
        for server in sorted(servers):
            known = self._servers.get(server)
            if known is None or (known.failing_since is None and known.known_at < fresh):
                continue
            report: dict[str, Any] = {
                "process": self.name, "host": self.host[:128], "server": server,
                "loops": " ".join(sorted(self.loops)), "fails": known.failing_since is not None,
            }  # fmt: skip
            prepared.execute(_REPORT, report)
            prepared.execute(_DELETE, {"age": DELETE_AFTER_S})

    def _start_probes(self, servers: Iterable[str]) -> None:
        """Probe the servers that are due, each in a thread."""
        if self.probe is None:
            return
        for server in servers:
            with self._lock:
                known = self._servers.setdefault(server, _Server())
                if time.monotonic() - known.probed_at < PROBE_S:
                    continue
                known.probed_at = time.monotonic()
                if server in self._probing:
                    continue
                self._probing.add(server)
            threading.Thread(target=self._probe, args=(server, self.probe), name="probe", daemon=True).start()

    def _probe(self, server: str, probe: Callable[[str], None]) -> None:
        try:
            probe(server)
        except Exception as error:
            self.record_failure(server, error)
        else:
            self.record_success(server)
        finally:
            with self._lock:
                self._probing.discard(server)


def _is_better(other: Report, failing: frozenset[str]) -> bool:
    return failing <= other.reached | other.failing and other.failing < failing


process = Process()


def reset() -> None:
    """Reset what this process knows, except its probe: in a forked process, and in tests."""
    global process
    former, process = process, Process()
    process.probe = former.probe


os.register_at_fork(after_in_child=reset)


def cut_off_hosts() -> list[str]:
    """Return the hosts with a process that is relieved by another host, for the health bar and the metrics."""
    reader = Process()
    reader._read()
    reports = reader._others
    return sorted(
        {
            report.host
            for report in reports
            if report.failing
            and any(other.host != report.host and _is_better(other, report.failing) for other in reports)
        }
    )
