"""Run loops concurrently: asyncio schedules their steps, threads execute them.

Leaderships are renewed in a dedicated thread, so that a long step does not lose its leadership. A step whose
leadership is lost is not started again, and its late writes are fenced by its epoch. A leader whose steps all
fail, or whose step exceeds its limit, gives up its leadership and stands back for a while, since another process
may succeed. One that has lost the Redis that its loop needs hands the leadership over once, and keeps it if it
gets it back, since then no other process has Redis either. One that has not reached the phone provider for a while
hands over the leaderships that need it, but only while another process reports that it reaches the provider.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import structlog
from django.conf import settings
from django.db import Error, close_old_connections, connections

from dispatch.core.db import blockers
from dispatch.core.observability import liveness, metrics
from dispatch.core.redis.client import breaker, server_url
from dispatch.core.redis.listener import listen
from dispatch.core.runtime import leader_election, reachability
from dispatch.core.runtime.due_checks import DueChecks
from dispatch.core.runtime.leader_election import Election, renew, resign
from dispatch.core.runtime.loops import Loop, NothingSucceeded, Service
from dispatch.core.runtime.queues import notification_channel
from dispatch.core.runtime.step_threads import StepThreads

log = structlog.get_logger(__name__)

FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 30.0
STOP_GRACE_S = 10.0
RESIGN_GRACE_S = 5.0
# A leader gives up its leadership after this many consecutive failures over this much time.
GIVE_UP_FAILURES, GIVE_UP_AFTER_S = 5, 15.0
STAND_BACK_S = 60.0
# Long pauses vary by this share, so that the loops do not all start in the same second, each with a connection.
SPREAD, SPREAD_FROM_S = 0.1, 10.0
# A process has lost Redis when it has failed for this long.
REDIS_LOST_AFTER_S = 5.0
# After a handover because of the provider, the next one of the same loop waits this long, then twice as long. A
# leader that is cut off does nothing meanwhile, so the longest wait is short.
FIRST_HANDOVER_PAUSE_S, MAX_HANDOVER_PAUSE_S = 60.0, 120.0

# The leadership of the current step: (name, epoch), for `leader_election.fence(*leading.get())`.
leading: contextvars.ContextVar[tuple[str, int]] = contextvars.ContextVar("leading")


class _Record:
    """Track whether an elected loop succeeds as the leader."""

    def __init__(self) -> None:
        self.began: float | None = None  # of the current step
        self.failures = 0  # consecutive
        self._failing_since = 0.0
        self._database: Any = None  # the connection of the thread that runs the step

    def running_s(self) -> float:
        return 0.0 if self.began is None else time.monotonic() - self.began

    def use_database(self) -> None:
        """Remember the connection of this thread, which runs the step."""
        self._database = connections["default"]

    def backend_pid(self) -> int | None:
        """Return the process id of the database session of the running step, if it has one."""
        raw = getattr(self._database, "connection", None)
        return raw.info.backend_pid if raw is not None and not raw.closed else None

    def end(self, failed: bool) -> None:
        """Record the end of a step."""
        self.began = None
        if not failed:
            self.failures = 0
            return
        if not self.failures:
            self._failing_since = time.monotonic()
        self.failures += 1

    def is_failing(self) -> bool:
        return self.failures >= GIVE_UP_FAILURES and time.monotonic() - self._failing_since >= GIVE_UP_AFTER_S

    def reset(self) -> None:
        self.failures = 0


class Runner:
    """Runs `loops` until `stop()`; see `run`."""

    def __init__(
        self,
        loops: Sequence[Loop | Service],
        *,
        listen: bool = True,
        process: reachability.Process | None = None,
    ) -> None:
        self.loops = list(loops)
        self._listen = listen
        self._process = process or reachability.process
        self._process.loops = frozenset(loop.name for loop in loops)
        self._elections = {loop.name: Election(f"loop:{loop.name}") for loop in loops if loop.elected}
        self._triggers: dict[str, asyncio.Event] = {}
        self._stopping = asyncio.Event()
        self._steps = StepThreads()
        # One thread: renewing and giving up never overlap.
        self._renewals = ThreadPoolExecutor(1, thread_name_prefix="election")
        self._records = {name: _Record() for name in self._elections}
        self._loops = {loop.name: loop for loop in loops if isinstance(loop, Loop)}
        self._due_checks = DueChecks(self._loops.values())
        self._handed_over: set[str] = set()  # since Redis was lost
        self._led_since: dict[str, float] = {}
        # By loop: until when it hands nothing over, and the pause.
        self._handovers: dict[str, tuple[float, float]] = {}
        self._name_metrics()

    def _name_metrics(self) -> None:
        """Export the counters of each loop from the start, so that an alert sees the first failure."""
        for loop in self.loops:
            for outcome in ("done", "failed"):
                metrics.loop_steps.labels(loop.name, outcome)
        for name in self._elections:
            for reason in ("failing", "stuck", "blocked"):
                metrics.leaderships_given_up.labels(name, reason)

    async def run(self) -> None:
        """Run until `stop()`; return when the running steps have ended or the grace period is over.

        All leaderships are released. Raises only what is not an Exception.
        """
        self._event_loop = asyncio.get_running_loop()
        self._triggers = {loop.name: asyncio.Event() for loop in self.loops}
        hear = (
            threading.Thread(target=self._listen_for_notifications, name="wake", daemon=True)
            if self._listen
            else None
        )
        if hear:
            hear.start()
        log.info("loops_started", loops=" ".join(loop.name for loop in self.loops))
        tasks = [
            asyncio.create_task(
                self._run_service(loop) if isinstance(loop, Service) else self._run_loop(loop), name=loop.name
            )
            for loop in self.loops
        ]
        if self._elections:
            tasks.append(asyncio.create_task(self._hold_leadership(), name="elections"))
        if self._due_checks:
            tasks.append(
                asyncio.create_task(self._due_checks.watch(self._stopping, self.trigger), name="due checks")
            )
        beat = asyncio.create_task(self._report_liveness(), name="liveness")
        stopped = asyncio.create_task(self._stopping.wait(), name="stop")
        try:
            await asyncio.wait([stopped, *tasks], return_when=asyncio.FIRST_COMPLETED)
            self.stop()
            # The outbox's router lets its requests end.
            grace_s = max(STOP_GRACE_S, settings.OUTBOX_MAX_TIMEOUT_S + 5.0)
            done, late = await asyncio.wait(tasks, timeout=grace_s) if tasks else (set(), set())
            for task in late:
                log.warning("loop_abandoned_at_shutdown", loop=task.get_name())
                task.cancel()
            for task in done:
                task.result()
        finally:
            stopped.cancel()
            beat.cancel()
            liveness.clear_deadline("event loop")
            await self._resign()
            if hear:
                await asyncio.to_thread(hear.join, 2)
            self._steps.shutdown(wait=False, cancel_futures=True)
            self._renewals.shutdown(wait=False, cancel_futures=True)

    def stop(self) -> None:
        """Ask all loops and services to end. Call it in the event loop's thread."""
        self._stopping.set()
        for poke in self._triggers.values():
            poke.set()

    def trigger(self, name: str) -> None:
        """Run this loop now, or again if it is running. Unknown names are ignored: other processes run them."""
        if name in self._triggers:
            self._triggers[name].set()

    async def _report_liveness(self) -> None:
        while True:
            liveness.set_deadline("event loop", liveness.EVENT_LOOP_S)
            await asyncio.sleep(liveness.EVENT_LOOP_BEAT_S)

    async def _run_service(self, service: Service) -> None:
        failures = 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                with structlog.contextvars.bound_contextvars(loop=service.name):
                    await service.run(self._stopping)
                outcome = "done"
            except Exception:
                log.exception("service_failed", loop=service.name)
                outcome = "failed"
            metrics.loop_steps.labels(service.name, outcome).inc()
            failures = 1 if time.monotonic() - began > MAX_BACKOFF_S else failures + 1
            if not self._stopping.is_set():
                await _wait(self._stopping, backoff(failures))

    async def _run_loop(self, loop: Loop) -> None:
        poke, failures = self._triggers[loop.name], 0
        election = self._elections.get(loop.name)
        while not self._stopping.is_set():
            if election and not election.is_leader:
                await _wait(poke, settings.LEADER_RENEW_S)
                poke.clear()
                continue
            poke.clear()
            failed = False
            record = self._records.get(loop.name, _Record())
            record.began = time.monotonic()
            liveness.set_deadline(f"loop:{loop.name}", max(liveness.STEP_S, 2 * loop.limit_s))
            try:
                wish = await self._in_thread(self._steps, self._step, loop, election)
                failures = 0
                pause = loop.interval_s if wish is None else max(0.0, wish)
            except NothingSucceeded as error:  # every item failed separately: another process may succeed
                failed, failures, pause = True, 0, loop.interval_s
                log.warning("step_without_success", loop=loop.name, failed=error.failed)
            except Exception:
                failed = True
                failures += 1
                pause = backoff(failures)
                log.exception("step_failed", loop=loop.name, failures=failures, again_in_s=round(pause, 1))
            record.end(failed)
            liveness.clear_deadline(f"loop:{loop.name}")
            if election and record.is_failing():
                await self._give_up(election, "failing", failures=record.failures)
                record.reset()
            if loop.due and not failed and wish is None:
                await self._due_checks.rest(loop, poke)
                continue
            # A notification must not turn a failing loop into a busy one.
            await _wait(self._stopping if failures else poke, _spread(pause))

    def _step(self, loop: Loop, election: Election | None) -> float | None:
        if election:
            if (epoch := election.epoch) is None:  # lost since the check: nothing would fence this step
                return None
            leading.set((election.name, epoch))
            self._records[loop.name].use_database()
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

    async def _hold_leadership(self) -> None:
        while not self._stopping.is_set():
            for name, election in self._elections.items():
                record = self._records[name]
                if election.is_leader and record.running_s() > self._loops[name].limit_s:
                    blocked_by, oldest = await self._find_blockers(record)
                    await self._give_up(
                        election,
                        "blocked" if blocked_by else "stuck",
                        running_s=round(record.running_s()),
                        blocked_by=blocked_by or None,
                        oldest_transaction=oldest or None,
                    )
            await self._hand_over_without_redis()
            await self._hand_over_without_provider()
            led = {name for name, election in self._elections.items() if election.is_leader}
            # A step beyond its limit is still running: as the leader, its loop could not run another step.
            standing = [
                election
                for name, election in self._elections.items()
                if self._records[name].running_s() <= self._loops[name].limit_s
            ]
            try:
                await self._in_renewal_thread(renew, standing)
            except Exception as error:
                # Not renewed: `is_leader` turns false by itself when the lease expires.
                log.warning("leadership_renewal_failed", error=str(error).strip())
            for name, election in self._elections.items():
                if election.is_leader and name not in led:
                    self.trigger(name)
            await _wait(self._stopping, settings.LEADER_RENEW_S)

    async def _hand_over_without_redis(self) -> None:
        """Release the leaderships of loops whose Redis this process has lost, once in each outage."""
        leaving: list[Election] = []
        for name, election in self._elections.items():
            purpose = self._loops[name].needs_redis
            if purpose is None:
                continue
            failing_s = breaker(server_url(purpose)).failing_s()
            if not failing_s and name in self._handed_over:
                self._handed_over.remove(name)
                election.stand_back(0)
            if failing_s >= REDIS_LOST_AFTER_S and name not in self._handed_over and election.is_leader:
                self._handed_over.add(name)
                election.stand_back(STAND_BACK_S)
                leaving.append(election)
        await self._hand_over(leaving, "Redis cannot be reached")

    async def _hand_over_without_provider(self) -> None:
        """Release the leaderships of loops that need the phone provider, if only another process reaches it.

        As a candidate, this process leaves them to the others while they can.
        """
        now, leaving = time.monotonic(), []
        for name, election in self._elections.items():
            if not election.is_leader:
                self._led_since.pop(name, None)
            led_since = self._led_since.setdefault(name, now) if election.is_leader else now
            if not self._loops[name].needs_provider or not self._process.has_relief(name):
                continue
            if not election.is_leader:
                election.stand_back(STAND_BACK_S)
                continue
            failed_s = min(self._process.failing_s(), now - led_since)
            pause_until, pause_s = self._handovers.get(name, (0.0, FIRST_HANDOVER_PAUSE_S / 2))
            if failed_s < settings.PROVIDER_LOST_AFTER_S or now < pause_until:
                continue
            is_calm = now > pause_until + 2 * MAX_HANDOVER_PAUSE_S
            pause_s = FIRST_HANDOVER_PAUSE_S if is_calm else min(2 * pause_s, MAX_HANDOVER_PAUSE_S)
            self._handovers[name] = now + pause_s, pause_s
            election.stand_back(STAND_BACK_S)
            leaving.append(election)
        await self._hand_over(leaving, "the phone provider cannot be reached")

    async def _hand_over(self, leaving: Sequence[Election], reason: str) -> None:
        """Release these leaderships, for others to claim."""
        if not leaving:
            return
        loops = " ".join(election.name.removeprefix("loop:") for election in leaving)
        log.warning("leaderships_handed_over", loops=loops, reason=reason)
        try:
            await self._in_renewal_thread(resign, leaving)
        except Exception as error:
            log.warning("leadership_release_failed", loop=loops, error=str(error).strip())

    async def _give_up(self, election: Election, reason: str, **fields: Any) -> None:
        """Release the leadership, and stand back for a while."""
        name = election.name.removeprefix("loop:")
        log.error("leadership_given_up", loop=name, reason=reason, **fields)
        metrics.leaderships_given_up.labels(name, reason).inc()
        election.stand_back(STAND_BACK_S)
        why = f"blocked by {fields['blocked_by']}" if fields.get("blocked_by") else reason
        try:
            await self._in_renewal_thread(resign, [election])
            await self._in_renewal_thread(leader_election.record_given_up, election.name, why)
        except Exception as error:
            log.warning("leadership_release_failed", loop=name, error=str(error).strip())

    async def _find_blockers(self, record: _Record) -> tuple[str, str]:
        """Return what blocks the running step, and the oldest transaction, in words."""
        waits: list[tuple[str, str]] = []
        try:
            await self._in_renewal_thread(lambda: waits.append(blockers.describe_wait(record.backend_pid())))
        except Exception as error:
            log.warning("blocking_session_not_found", error=str(error).strip())
        return waits[-1] if waits else ("", "")

    async def _in_renewal_thread(self, call: Callable[..., Any], *args: Any) -> None:
        """Run `call` on the renewal connection, without checking it first."""
        await asyncio.get_running_loop().run_in_executor(self._renewals, _retry_if_broken, call, *args)

    async def _resign(self) -> None:
        """Release all leaderships in one statement.

        A slow database must not delay the end of the process once per leadership.
        """
        held = list(self._elections.values())
        try:
            await asyncio.wait_for(self._in_thread(self._renewals, resign, held), timeout=RESIGN_GRACE_S)
        except Exception as error:
            log.warning("leadership_release_failed", error=str(error))

    async def _in_thread(self, pool: Executor, call: Callable[..., Any], *args: Any) -> Any:
        context = contextvars.copy_context()
        return await asyncio.get_running_loop().run_in_executor(pool, context.run, _fresh, call, *args)

    def _listen_for_notifications(self) -> None:
        """Listen for notifications in a thread and trigger loops by name.

        After an outage, trigger all loops, since notifications were lost.
        """

        def trigger(loop_name: str) -> None:
            self._event_loop.call_soon_threadsafe(self.trigger, loop_name)

        def trigger_all() -> None:
            for loop in self.loops:
                trigger(loop.name)

        with suppress(RuntimeError):  # the event loop is closed: the process ends
            listen(notification_channel, self._stopping.is_set, trigger, trigger_all)


def backoff(failures: int) -> float:
    """Return the pause in seconds after this many consecutive failures: doubling up to 30 s, with jitter."""
    longest = min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2 ** min(failures - 1, 10))
    return longest * random.uniform(0.7, 1.0)


def _spread(pause_s: float) -> float:
    """Shorten a long pause by a random part."""
    return pause_s * random.uniform(1 - SPREAD, 1.0) if pause_s >= SPREAD_FROM_S else pause_s


def _retry_if_broken(call: Callable[..., Any], *args: Any) -> None:
    """Run `call`, and again on a new connection if the connection in use is broken."""
    try:
        call(*args)
    except Error:
        connections.close_all()
        call(*args)


def _fresh(call: Callable[..., Any], *args: Any) -> Any:
    """Run `call` with database connections that are neither stale nor broken."""
    close_old_connections()
    try:
        return call(*args)
    except Exception:
        connections.close_all()
        raise
    finally:
        close_old_connections()


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait until the event is set, at most this long."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        pass
