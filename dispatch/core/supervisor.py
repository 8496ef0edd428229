"""Runs child processes side by side: prefixed output, restarts with growing pauses, an orderly end.

    with Supervisor([Spec("web", [...], ready_url="http://127.0.0.1:8000/readyz")], env) as children:
        children.wait_ready()
        children.run()          # until Ctrl-C or SIGTERM

Each child has a process group of its own, which is ended as a whole; on Linux the kernel ends the children when
the supervisor itself is killed."""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from types import FrameType
from typing import TextIO

import requests

from dispatch.core import metrics, parents

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
# So many deaths within so many seconds, and it is reported as one that keeps dying.
MANY_DEATHS, DEATHS_WITHIN_S = 5, 60.0
STOP_GRACE_S = 12.0
LAST_LINES = 15
_COLOURS = (36, 33, 32, 35, 34, 96, 93, 92, 95, 94)


@dataclass(frozen=True)
class Spec:
    """One child: what to run, how to know that it is ready (a file that it writes, an address that answers 200),
    when to stop it (the lowest stage first; a stage must have ended before the next begins), and which open file
    descriptors it inherits. One that `relays` is a supervisor too: its lines come with its children's names."""

    name: str
    command: Sequence[str]
    ready_url: str = ""
    ready_file: Path | None = None
    stop_stage: int = 0
    pass_fds: tuple[int, ...] = ()
    relays: bool = False


class NotReady(RuntimeError):
    """Something did not come up in time; the message holds its last lines."""


@dataclass
class _Child:
    spec: Spec
    colour: int = 37
    draining: bool = False
    told: bool = False  # SIGTERM was sent; an RQ worker takes a second one for "drop what you do"
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    start_at: float = 0.0
    deaths: deque[float] = field(default_factory=lambda: deque(maxlen=MANY_DEATHS))
    failures: int = 0
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))
    reader: threading.Thread | None = None


class Supervisor:
    """`env` is the children's whole environment. `watch` is called about once a second in a thread of its own, for
    what must be kept alive besides the children; a text that it returns is printed. A child that has not ended
    `grace_s` seconds after it was asked to is killed."""

    def __init__(
        self,
        specs: Sequence[Spec],
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
        """Starts every child and the thread that keeps them running.

        That thread does all the starting: the kernel takes the forking thread's death for the parent's."""
        self._threads = [threading.Thread(target=self._keep, name="supervisor", daemon=True)]
        if self._watch:
            self._threads.append(threading.Thread(target=self._watching, name="watch", daemon=True))
        for thread in self._threads:
            thread.start()

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Returns when every child is ready. Raises NotReady after `timeout` seconds, or when stopped."""
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
                named = "; ".join(f"{c.spec.name} (last lines: {_last(c)})" for c in waiting)
                raise NotReady(f"Not ready after {timeout:g} s: {named}")

    def run(self) -> None:
        """Waits until SIGINT or SIGTERM, then stops. Call it in the main thread."""
        with self.interruptible():
            self._ending.wait()
        self.stop()

    @contextlib.contextmanager
    def interruptible(self) -> Iterator[None]:
        """While the block runs, SIGINT and SIGTERM begin the end instead of breaking off what runs."""

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
        """Returns true as soon as the end has begun, else false after that many seconds."""
        return self._ending.wait(seconds)

    def stop(self) -> None:
        """Ends all children, stage by stage, and returns when none is left. May be called twice."""
        self._ending.set()
        self._ended.wait()
        for thread in self._threads:
            thread.join(timeout=5)

    def pid_of(self, name: str) -> int | None:
        """The process id of a child, None while it is not running."""
        for child in self._children:
            if child.spec.name == name and child.process and child.process.poll() is None:
                return child.process.pid
        return None

    def add(self, spec: Spec) -> None:
        """One more child, started at once. Raises ValueError while there is one of that name."""
        with self._lock:
            if any(child.spec.name == spec.name for child in self._children):
                raise ValueError(f"There is a child called {spec.name!r} already.")
            colour = _COLOURS[len(self._children) % len(_COLOURS)]
            self._width = max(self._width, len(spec.name))
            self._children = [*self._children, _Child(spec, colour)]

    def drain(self, name: str) -> None:
        """Asks a child to end (SIGTERM) when it has finished what it is doing, and does not start it again.

        It counts among `names` until it has ended. Raises KeyError when there is none of that name."""
        with self._lock:
            child = next((child for child in self._children if child.spec.name == name), None)
            if child is None:
                raise KeyError(f"No child is called {name!r}.")
            child.draining = True

    def names(self, *, draining: bool | None = None) -> list[str]:
        """The children's names; only those that drain, or that do not, when asked."""
        return [c.spec.name for c in self._children if draining is None or c.draining is draining]

    def write(self, text: str) -> None:
        """Prints as it is, without a prefix, between the children's lines."""
        with self._lock, contextlib.suppress(OSError, ValueError):  # nobody reads any more: go on without
            self._out.write(text + "\n")
            self._out.flush()

    def say(self, text: str, name: str = "up") -> None:
        """Prints under a prefix of the supervisor's own."""
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
                            self._forget(child)
                        elif now >= child.start_at:
                            self._start(child)
                    elif child.process.poll() is not None:
                        self._bury(child, now)
                    elif child.draining:
                        self._tell(child)
                self._ending.wait(0.1)
        finally:
            self._end_all()
            self._ended.set()

    def _start(self, child: _Child) -> None:
        child.started = time.monotonic()
        if child.spec.ready_file:
            child.spec.ready_file.unlink(missing_ok=True)
        try:
            child.process = subprocess.Popen(
                child.spec.command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=child.spec.pass_fds,
                preexec_fn=functools.partial(parents.end_with, os.getpid()),
            )
        except OSError as error:  # no memory or no process left: the others go on meanwhile
            child.lines.append(str(error))
            child.start_at = child.started + LONGEST_PAUSE_S
            self.say(f"{child.spec.name} cannot be started ({error}); the next try is in {LONGEST_PAUSE_S:g} s")
            return
        child.reader = threading.Thread(target=self._read, args=(child, child.process), daemon=True)
        child.reader.start()

    def _tell(self, child: _Child) -> None:
        """Asks it to end, once; only it: it knows how to end its own children."""
        if child.process and not child.told and child.process.poll() is None:
            child.told = True
            child.process.terminate()

    def _forget(self, child: _Child) -> None:
        with self._lock:
            self._children = [other for other in self._children if other is not child]

    def _bury(self, child: _Child, now: float) -> None:
        assert child.process is not None
        _signal_group(child.process.pid, signal.SIGKILL)  # what it left behind
        metrics.forget_process(child.process.pid, self._env)
        if child.reader:
            child.reader.join(timeout=1)
        if child.draining:
            child.process = None
            return
        ended = _how(child.process.returncode)
        child.failures = 1 if now - child.started > DEATHS_WITHIN_S else child.failures + 1
        child.deaths.append(now)
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(child.failures - 1, 10))
        keeps_dying = len(child.deaths) == MANY_DEATHS and now - child.deaths[0] < DEATHS_WITHIN_S
        if keeps_dying:
            pause = LONGEST_PAUSE_S
            self.say(f"{child.spec.name} keeps dying ({ended}); the next try is in {pause:g} s. Last lines:")
            for line in child.lines:
                self.say(f"    {line}")
        else:
            self.say(f"{child.spec.name} {ended}; starting it again in {pause:g} s")
        child.process, child.start_at, child.told = None, now + pause, False

    def _end_all(self) -> None:
        for stage in sorted({child.spec.stop_stage for child in self._children}):
            living = [c for c in self._children if c.spec.stop_stage == stage and c.process]
            for child in living:
                self._tell(child)
            deadline = time.monotonic() + self._grace_s
            for child in living:
                assert child.process is not None
                try:
                    child.process.wait(timeout=max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.say(f"{child.spec.name} does not stop, it is killed")
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

    def _watching(self) -> None:
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


def _last(child: _Child) -> str:
    return " / ".join(list(child.lines)[-3:]) or "none"


def _how(returncode: int) -> str:
    if returncode < 0:
        return f"was ended by {signal.Signals(-returncode).name}"
    return f"ended with code {returncode}"


def _signal_group(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _is_ready(session: requests.Session, spec: Spec) -> bool:
    if spec.ready_file and not spec.ready_file.exists():
        return False
    try:
        return not spec.ready_url or session.get(spec.ready_url, timeout=5).status_code == 200
    except requests.RequestException:
        return False
