"""Supervise child processes: prefix their output, restart them with backoff, stop them in order.

    with Supervisor([ProcessSpec("web", [...], ready_url="http://127.0.0.1:8000/readyz")], env) as children:
        children.wait_ready()
        children.run()          # until Ctrl-C or SIGTERM

Each child has a separate process group, which is stopped as a whole. On Linux, the kernel ends the children if the
supervisor itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TextIO

import requests

from dispatch.core.observability import metric_files

FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
# A child that exits this often within this many seconds is reported as crashing repeatedly.
CRASH_LOOP_EXITS, CRASH_LOOP_WITHIN_S = 5, 60.0
STOP_GRACE_S = 12.0
LAST_LINES = 15
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


@dataclass(frozen=True)
class ProcessSpec:
    """One child process: its command, its readiness check and its place in the shutdown.

    It is ready when `ready_url` returns 200. The lowest `stop_stage` stops first, and the next stage follows when
    it has ended. The child inherits the file descriptors in `pass_fds`, for example of the socket that it serves.
    A child that `relays` is a supervisor too: its lines include its children's names.
    """

    name: str
    command: Sequence[str]
    ready_url: str = ""
    stop_stage: int = 0
    pass_fds: tuple[int, ...] = ()
    relays: bool = False


class NotReady(RuntimeError):
    """A child did not become ready in time. The message has its last lines."""


@dataclass
class _Child:
    spec: ProcessSpec
    colour: int = 37
    draining: bool = False
    is_terminating: bool = False  # SIGTERM was sent; a second one would make an RQ worker drop its job
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    start_at: float = 0.0
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=CRASH_LOOP_EXITS))
    failures: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    reader: threading.Thread | None = None


class Supervisor:
    """Supervise child processes. `env` is their whole environment.

    `watch` is called about once a second in a dedicated thread, to keep other things alive besides the children; a
    text that it returns is printed. A child that still runs `grace_s` seconds after SIGTERM is killed.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        env: Mapping[str, str] | None = None,
        *,
        out: TextIO | None = None,
        watch: Callable[[], str | None] | None = None,
        show: Callable[[str, str], bool] = lambda name, line: True,
        grace_s: float = STOP_GRACE_S,
    ) -> None:
        self._children = [_Child(spec, _COLOURS[place % len(_COLOURS)]) for place, spec in enumerate(specs)]
        self._env = dict(os.environ if env is None else env)
        self._out = out or sys.stdout
        self._colour = self._out.isatty()
        self._width = max([len(spec.name) for spec in specs] + [3])
        self._watch, self._show, self._grace_s = watch, show, grace_s
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._ended = threading.Event()
        self._threads: list[threading.Thread] = []
        self.interrupted = False

    def __enter__(self) -> Supervisor:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start every child and the thread that keeps them running.

        That thread starts every process, because the kernel treats the death of the forking thread as the parent's
        death.
        """
        self._threads = [threading.Thread(target=self._keep, name="supervisor", daemon=True)]
        if self._watch:
            self._threads.append(threading.Thread(target=self._call_watch, name="watch", daemon=True))
        for thread in self._threads:
            thread.start()

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Wait until every child is ready. Raises NotReady after `timeout` seconds, or when stopped."""
        deadline = time.monotonic() + timeout
        session = requests.Session()
        session.trust_env = False
        waiting = list(self._children)
        while waiting:
            waiting = [child for child in waiting if not _is_ready(session, child.spec)]
            if not waiting:
                return
            if self._ending.wait(0.1):
                raise NotReady("Stopped before everything was ready.")
            if time.monotonic() > deadline:
                named = "; ".join(f"{c.spec.name} (last lines: {_last_lines(c)})" for c in waiting)
                raise NotReady(f"Not ready after {timeout:g} s: {named}")

    def run(self) -> None:
        """Wait for SIGINT or SIGTERM, then stop. Call it in the main thread."""
        with self.interruptible():
            self._ending.wait()
        self.stop()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """While the block runs, let SIGINT and SIGTERM begin the shutdown instead of interrupting the block."""

        def end(number: int, frame: FrameType | None) -> None:
            self.interrupted = True
            self._ending.set()

        before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def wait(self, seconds: float) -> bool:
        """Wait at most this many seconds; return True as soon as the shutdown has begun, else False."""
        return self._ending.wait(seconds)

    def stop(self) -> None:
        """Stop all children, stage by stage, and return when none is left. It may be called repeatedly."""
        self._ending.set()
        self._ended.wait()
        for thread in self._threads:
            thread.join(timeout=5)

    def pid_of(self, name: str) -> int | None:
        """Return the process id of a child, or None while it is not running."""
        for child in self._children:
            if child.spec.name == name and child.process and child.process.poll() is None:
                return child.process.pid
        return None

    def add(self, spec: ProcessSpec) -> None:
        """Add a child and start it immediately. Raises ValueError if a child already has this name."""
        with self._lock:
            if any(child.spec.name == spec.name for child in self._children):
                raise ValueError(f"A child called {spec.name!r} already exists.")
            colour = _COLOURS[len(self._children) % len(_COLOURS)]
            self._width = max(self._width, len(spec.name))
            self._children = [*self._children, _Child(spec, colour)]

    def drain(self, name: str) -> None:
        """Ask a child to end (SIGTERM) after its current work, and do not restart it.

        It stays in `names` until it has ended. Raises KeyError if no child has this name.
        """
        with self._lock:
            child = next((child for child in self._children if child.spec.name == name), None)
            if child is None:
                raise KeyError(f"No child is called {name!r}.")
            child.draining = True

    def names(self, *, draining: bool | None = None) -> list[str]:
        """Return the children's names; with `draining`, only of those that drain (True) or do not (False)."""
        return [c.spec.name for c in self._children if draining is None or c.draining is draining]

    def write(self, text: str) -> None:
        """Print the text unchanged, without a prefix, between the children's lines."""
        with (
            self._lock,
            contextlib.suppress(OSError, ValueError),
        ):  # no process reads the output any longer: continue
            self._out.write(text + "\n")
            self._out.flush()

    def say(self, text: str, name: str = "up") -> None:
        """Print with the supervisor's own prefix."""
        for line in text.splitlines() or [""]:
            self._print(name, line, 37)

    # --- The supervisor's thread ------------------------------------------------------------------------------

    def _keep(self) -> None:
        try:
            while not self._ending.is_set():
                now = time.monotonic()
                for child in self._children:
                    if child.process is None:
                        if child.draining:
                            self._remove(child)
                        elif now >= child.start_at:
                            self._start(child)
                    elif child.process.poll() is not None:
                        self._reap(child, now)
                    elif child.draining:
                        self._terminate(child)
                self._ending.wait(0.1)
        finally:
            self._end_all()
            self._ended.set()

    def _start(self, child: _Child) -> None:
        child.started = time.monotonic()
        try:
            child.process = subprocess.Popen(
                child.spec.command,
                env={**self._env, **metric_files.child_variables(child.spec.name)},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=child.spec.pass_fds,
                preexec_fn=functools.partial(die_with_parent, os.getpid()),
            )
        except OSError as error:  # no memory or no process left: the others keep running
            child.lines.append(str(error))
            child.start_at = child.started + MAX_PAUSE_S
            self.say(f"{child.spec.name} can't be started ({error}); next try in {MAX_PAUSE_S:g} s")
            return
        child.reader = threading.Thread(target=self._read, args=(child, child.process), daemon=True)
        child.reader.start()

    def _terminate(self, child: _Child) -> None:
        """Send SIGTERM, once, and only to the child: it ends its own children."""
        if child.process and not child.is_terminating and child.process.poll() is None:
            child.is_terminating = True
            child.process.terminate()

    def _remove(self, child: _Child) -> None:
        with self._lock:
            self._children = [other for other in self._children if other is not child]

    def _reap(self, child: _Child, now: float) -> None:
        assert child.process is not None
        _signal_group(child.process.pid, signal.SIGKILL)  # also kills processes that the child left behind
        metric_files.delete_live_gauges(child.spec.name, self._env)
        if child.reader:
            child.reader.join(timeout=1)
        if child.draining:
            child.process = None
            return
        ended = _describe_exit(child.process.returncode)
        child.failures = 1 if now - child.started > CRASH_LOOP_WITHIN_S else child.failures + 1
        child.deaths.append(now)
        pause = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2 ** min(child.failures - 1, 10))
        is_crash_looping = len(child.deaths) == CRASH_LOOP_EXITS and now - child.deaths[0] < CRASH_LOOP_WITHIN_S
        if is_crash_looping:
            pause = MAX_PAUSE_S
            self.say(f"{child.spec.name} keeps crashing ({ended}); next try in {pause:g} s. Last lines:")
            for line in child.lines:
                self.say(f"    {line}")
        else:
            self.say(f"{child.spec.name} {ended}; restarting in {pause:g} s")
        child.process, child.start_at, child.is_terminating = None, now + pause, False

    def _end_all(self) -> None:
        for stage in sorted({child.spec.stop_stage for child in self._children}):
            living = [c for c in self._children if c.spec.stop_stage == stage and c.process]
            for child in living:
                self._terminate(child)
            deadline = time.monotonic() + self._grace_s
            for child in living:
                assert child.process is not None
                try:
                    child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.say(f"{child.spec.name} does not stop; killing it")
                _signal_group(child.process.pid, signal.SIGKILL)
                child.process.wait()
                if child.reader:
                    child.reader.join(timeout=2)

    # --- Other threads ----------------------------------------------------------------------------------------

    def _read(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for raw in process.stdout:
                line = raw.decode(errors="replace").rstrip()
                child.lines.append(line)
                name = child.spec.name
                if child.spec.relays and " | " in line:
                    inner, line = line.split(" | ", 1)
                    name = inner.strip()
                if self._show(name, line):
                    self._print(name, line, child.colour)

    def _call_watch(self) -> None:
        assert self._watch is not None
        while not self._ending.wait(1.0):
            try:
                news = self._watch()
            except Exception as error:
                news = f"watching failed: {error}"
            if news:
                self.say(news)

    def _print(self, name: str, line: str, colour: int) -> None:
        prefix = f"{name:<{self._width}} |"
        if self._colour:
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        self.write(f"{prefix} {line}")


def _last_lines(child: _Child) -> str:
    return " / ".join(list(child.lines)[-3:]) or "none"


def _describe_exit(returncode: int) -> str:
    if returncode < 0:
        return f"was killed by {signal.Signals(-returncode).name}"
    return f"exited with code {returncode}"


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _is_ready(session: requests.Session, spec: ProcessSpec) -> bool:
    try:
        return not spec.ready_url or session.get(spec.ready_url, timeout=5).status_code == 200
    except requests.RequestException:
        return False


_prctl: Any = None
with contextlib.suppress(OSError, AttributeError):  # not Linux: the children of a killed parent continue
    _prctl = ctypes.CDLL(None, use_errno=True).prctl
_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Ask the kernel to send SIGTERM to this process when its parent dies.

    `parent` is the parent's process id, read before the fork. Exits immediately if the parent has already died.
    May be called between fork and exec.
    """
    if _prctl is None:
        return
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent died before the request
        os._exit(1)
