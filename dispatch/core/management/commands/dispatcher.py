"""Runs the dispatcher's loops."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import uvloop
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core import metrics
from dispatch.core.loop_runner import Runner
from dispatch.core.loops import Loop, Service, all_loops


class Command(BaseCommand):
    help = "Runs the loops that keep everything moving: auditor, event readers, reconcilers, placer."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--only", default="", help="names of loops, with commas (default: all)")
        parser.add_argument("--list", action="store_true", help="say which loops there are, and end")

    def handle(self, *args: Any, **options: Any) -> None:
        loops = all_loops()
        if options["list"]:
            for loop in loops:
                elected = ", elected" if loop.elected else ""
                how = f"every {loop.interval_s:g} s{elected}" if isinstance(loop, Loop) else "all the time"
                self.stdout.write(f"{loop.name} ({how})")
            return
        chosen = _chosen(loops, options["only"])
        metrics.serve()
        uvloop.run(_run(chosen))


def _chosen(loops: list[Loop | Service], only: str) -> list[Loop | Service]:
    wanted = {name.strip() for name in only.split(",") if name.strip()}
    if unknown := wanted - {loop.name for loop in loops}:
        names = ", ".join(sorted(loop.name for loop in loops))
        raise CommandError(f"No loop is called {', '.join(sorted(unknown))}. There are: {names}.")
    return [loop for loop in loops if not wanted or loop.name in wanted]


async def _run(loops: list[Loop | Service]) -> None:
    runner = Runner(loops)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, runner.stop)
    await runner.run()
