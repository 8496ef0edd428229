"""Run the dispatcher's loops."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Any

import uvloop
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.db import session_limits
from dispatch.core.observability import metrics
from dispatch.core.runtime import connection_budget, preflight, request_loop
from dispatch.core.runtime.fair_threads import REQUESTS_END_S, FairThreads
from dispatch.core.runtime.loop_runner import Runner
from dispatch.core.runtime.loops import Loop, Service, all_loops

# The default (700, 10, 10) spends a third of a dialer's CPU on objects that die without a collection.
COLLECT_AT = (20_000, 20, 20)


class Command(BaseCommand):
    """Run all loops of the dispatcher process, or those named by --only, until stopped."""

    help = "Runs the background loops: auditor, event readers, reconcilers, call placer."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--only", default="", help="comma-separated loop names (default: all)")
        parser.add_argument("--list", action="store_true", help="list the loops and exit")

    def handle(self, *args: Any, **options: Any) -> None:
        loops = all_loops()
        if options["list"]:
            for loop in loops:
                elected = ", elected" if loop.elected else ""
                how = f"every {loop.interval_s:g} s{elected}" if isinstance(loop, Loop) else "continuously"
                self.stdout.write(f"{loop.name} ({how})")
            return
        chosen = _chosen(loops, options["only"])
        session_limits.apply(session_limits.BACKGROUND)
        preflight.check()
        connection_budget.warn_if_too_many("dispatcher", connection_budget.of_dispatcher(chosen))
        metrics.serve()
        FairThreads.start_threads(settings.DISPATCHER_REQUEST_THREADS or None)
        uvloop.run(_run(chosen))


def _chosen(loops: list[Loop | Service], only: str) -> list[Loop | Service]:
    wanted = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := wanted - {loop.name for loop in loops}:
        names = ", ".join(sorted(loop.name for loop in loops))
        raise CommandError(f"No loop is called {', '.join(sorted(unknown))}. Choose from: {names}.")
    return [loop for loop in loops if not wanted or loop.name in wanted]


async def _run(loops: list[Loop | Service]) -> None:
    runner = Runner(loops)
    gc.freeze()  # what was loaded at startup stays, so no collection needs to visit it
    gc.set_threshold(*COLLECT_AT)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, runner.stop)
    with request_loop.adopted(asyncio.get_running_loop()):
        try:
            await runner.run()
        finally:
            await asyncio.to_thread(FairThreads.stop_threads, REQUESTS_END_S)  # their requests run in this loop
            await request_loop.close_services()
