"""Runs loops side by side: asyncio decides when, threads do the steps.

Renewing leaderships has threads of its own, so that a long step does not lose its leadership; a step whose
leadership is lost is not started again, and what it still writes is fenced by its epoch."""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from django.conf import settings
from django.db import close_old_connections, connections

from dispatch.core import metrics
from dispatch.core.election import Election, resign
from dispatch.core.loops import Loop, Service
from dispatch.core.queues import wake_channel
from dispatch.core.redis import REDIS_ERRORS, connect

log = structlog.get_logger(__name__)

FIRST_BACKOFF_S = 0.5
LONGEST_BACKOFF_S = 30.0
STOP_GRACE_S = 10.0
RESIGN_GRACE_S = 5.0
RENEWING_THREADS = 2

# The leadership under which the present step runs: (name, epoch), for `election.fence(*leading.get())`.
leading: contextvars.ContextVar[tuple[str, int]] = contextvars.ContextVar("leading")


class Runner:
    """Runs `loops` until `stop()`; see `run`."""

    def __init__(self, loops: Sequence[Loop | Service], *, listen: bool = True) -> None:
        self.loops = list(loops)
        self._listen = listen
        self._elections = {loop.name: Election(f"loop:{loop.name}") for loop in loops if loop.elected}
        self._pokes: dict[str, asyncio.Event] = {}
        self._stopping = asyncio.Event()
        self._steps = ThreadPoolExecutor(max(1, len(self.loops)), thread_name_prefix="step")
        self._renewals = ThreadPoolExecutor(RENEWING_THREADS, thread_name_prefix="election")

    async def run(self) -> None:
        """Returns after `stop()`, when the running steps have ended (or the grace is over) and all leaderships are
        handed over. Raises only what is not an Exception."""
        self._event_loop = asyncio.get_running_loop()
        self._pokes = {loop.name: asyncio.Event() for loop in self.loops}
        hear = threading.Thread(target=self._hear, name="wake", daemon=True) if self._listen else None
        if hear:
            hear.start()
        log.info("runs", loops=" ".join(loop.name for loop in self.loops))
        tasks = [
            asyncio.create_task(
                self._serve(loop) if isinstance(loop, Service) else self._keep(loop), name=loop.name
            )
            for loop in self.loops
        ]
        tasks += [asyncio.create_task(self._lead(e), name=f"lead {n}") for n, e in self._elections.items()]
        stopped = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            done, late = await asyncio.wait(tasks, timeout=STOP_GRACE_S) if tasks else (set(), set())
            for task in late:
                log.warning("does not stop, left behind", loop=task.get_name())
                task.cancel()
            for task in done:
                task.result()
        finally:
            stopped.cancel()
            await self._resign()
            if hear:
                await asyncio.to_thread(hear.join, 2)
            self._steps.shutdown(wait=False, cancel_futures=True)
            self._renewals.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Asks everything to end; call it in the event loop's thread."""
        self._stopping.set()
        for poke in self._pokes.values():
            poke.set()

    def poke(self, name: str) -> None:
        """Runs that loop now (or again, when it is running); unknown names are for other processes."""
        if name in self._pokes:
            self._pokes[name].set()

    async def _serve(self, service: Service) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                with structlog.contextvars.bound_contextvars(loop=service.name):
                    await service.run(self._stopping)
                outcome = "done"
            except Exception:
                log.exception("a service failed", loop=service.name)
                outcome = "failed"
            metrics.loop_steps.labels(service.name, outcome).inc()
            failures = 1 if time.monotonic() - began > LONGEST_BACKOFF_S else failures + 1
            if not self._stopping.is_set():
                await _wait(self._stopping, backoff(failures))

    async def _keep(self, loop: Loop) -> None:
        poke, failures = self._pokes[loop.name], 0
        election = self._elections.get(loop.name)
        while not self._stopping.is_set():
            if election and not election.is_leader:
                await _wait(poke, settings.LEADER_RENEW_S)
                poke.clear()
                continue
            poke.clear()
            try:
                wish = await self._in_thread(self._steps, self._step, loop, election)
                failures = 0
                pause = loop.interval_s if wish is None else max(0.0, wish)
            except Exception:
                failures += 1
                pause = backoff(failures)
                log.exception("a step failed", loop=loop.name, failures=failures, again_in_s=round(pause, 1))
            # A wake must not turn a failing loop into a busy one.
            await _wait(self._stopping if failures else poke, pause)

    def _step(self, loop: Loop, election: Election | None) -> float | None:
        if election:
            if (epoch := election.epoch) is None:  # lost since it was asked: nothing would fence this step
                return None
            leading.set((election.name, epoch))
        outcome = "failed"
        try:
            with (
                structlog.contextvars.bound_contextvars(loop=loop.name),
                metrics.loop_step_seconds.labels(loop.name).time(),
            ):
                wish = loop.step()
            outcome = "done"
            return wish
        finally:
            metrics.loop_steps.labels(loop.name, outcome).inc()

    async def _lead(self, election: Election) -> None:
        name = election.name.removeprefix("loop:")
        while not self._stopping.is_set():
            led = election.is_leader
            try:
                await self._in_thread(self._renewals, election.step)
            except Exception as error:
                # Not renewed: `is_leader` turns false by itself when the lease is over.
                log.warning(
                    "a leadership could not be renewed", leadership=election.name, error=str(error).strip()
                )
            if election.is_leader and not led:
                self.poke(name)
            await _wait(self._stopping, settings.LEADER_RENEW_S)

    async def _resign(self) -> None:
        """Hands all leaderships over, in one statement: a slow database must not delay the end of the process by
        its slowness for each of them."""
        held = list(self._elections.values())
        try:
            await asyncio.wait_for(self._in_thread(self._renewals, resign, held), timeout=RESIGN_GRACE_S)
        except Exception as error:
            log.warning("could not resign, the leases will lapse", error=str(error))

    async def _in_thread(self, pool: ThreadPoolExecutor, call: Callable[..., Any], *args: Any) -> Any:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(pool, context.run, _fresh, call, *args)

    def _hear(self) -> None:
        """The listening thread: pokes loops by name; after an outage all of them, for what was missed."""
        missed, pause = False, FIRST_BACKOFF_S
        while not self._stopping.is_set():
            try:
                listener = connect(socket_timeout=5).pubsub(ignore_subscribe_messages=True)
                listener.subscribe(wake_channel())
                if missed:
                    for loop in self.loops:
                        self._event_loop.call_soon_threadsafe(self.poke, loop.name)
                missed, pause = False, FIRST_BACKOFF_S
                while not self._stopping.is_set():
                    message = listener.get_message(timeout=0.5)
                    if message and isinstance(message["data"], bytes):
                        self._event_loop.call_soon_threadsafe(self.poke, message["data"].decode())
            except REDIS_ERRORS as error:
                if not missed:
                    log.warning("cannot be woken, goes by intervals until Redis is back", error=str(error))
                missed = True
                threading.Event().wait(pause)
                pause = min(pause * 2, 5.0)
            except RuntimeError:  # the event loop is closed: the process ends
                return


def backoff(failures: int) -> float:
    """Seconds to pause after so many failures in a row: doubling, to 30 s, a little apart from each other."""
    longest = min(LONGEST_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures - 1, 10))
    return longest * random.uniform(0.7, 1.0)


def _fresh(call: Callable[..., Any], *args: Any) -> Any:
    """Runs `call` with database connections that are neither stale nor left in a broken state."""
    close_old_connections()
    try:
        return call(*args)
    except Exception:
        connections.close_all()
        raise
    finally:
        close_old_connections()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
