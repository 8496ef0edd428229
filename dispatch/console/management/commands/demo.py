"""The main job without a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.console.demo.lines import FILE, load
from dispatch.console.demo.printing import Printer
from dispatch.console.demo.report import End, Outcome, table
from dispatch.console.demo.run import Run
from dispatch.core import site
from dispatch.core.supervisor import NotReady

INTERRUPTED = 130
PATIENCE_S = 300.0  # until everything runs, also on a busy machine


class Command(BaseCommand):
    help = (
        "Runs the site, submits forms through its API, lets simulated technicians answer, and ends with a table."
    )
    requires_system_checks = ()  # `prepare` runs them, and says what is wrong in plain lines

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seed", type=int, default=7, help="of what the phones do and when forms come")
        parser.add_argument("--file", type=Path, default=FILE, help="the forms, one JSON object per line")
        parser.add_argument("--logs", action="store_true", help="also print what the processes log")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEVELOPMENT:
            raise CommandError("The demo runs only where DISPATCH_DEVELOPMENT=1 is set.")
        printer = Printer(sys.stdout)
        log_path = Path(settings.DATA_DIR) / "demo.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lines = load(options["file"])
            with log_path.open("w", encoding="utf-8") as log:
                failed = self._run(lines, printer, options["seed"], _shown(log, options["logs"]))
        except KeyboardInterrupt:  # while it was still being prepared
            sys.exit(INTERRUPTED)
        except (site.CannotStart, NotReady, ValueError, OSError) as error:
            raise CommandError(str(error)) from error
        if failed == INTERRUPTED:
            sys.exit(failed)
        if failed:
            printer.line(f"What the processes logged is in {log_path}.")
            sys.exit(failed)

    def _run(self, lines: list[Any], printer: Printer, seed: int, show: Callable[[str, str], bool]) -> int:
        printer.line("Starting PostgreSQL, Valkey, web, workers, dispatcher and the telephone simulator …")
        prepared = site.prepare(show=show, usual_ports=False)
        supervisor = prepared.supervisor
        outcomes: list[Outcome] = []
        complaints: list[str] = []
        with supervisor.interruptible(), supervisor:
            try:
                supervisor.wait_ready(timeout=PATIENCE_S)
                run = Run(
                    prepared.base_url,
                    prepared.simulator_url,
                    lines,
                    printer,
                    chance=seed,
                    interrupted=lambda: supervisor.interrupted,
                )
                printer.line(f"{len(lines)} forms go to {prepared.base_url}. Seconds, form, what it is about:\n")
                outcomes = run.run()
                complaints = run.complaints()
            except (NotReady, OSError):
                if not supervisor.interrupted:  # else: what it spoke with has been stopped
                    raise
        if supervisor.interrupted:
            printer.line("Stopped.")
            return INTERRUPTED
        printer.line()
        printer.title("How it ended")
        for row in table(outcomes):
            printer.line(row)
        for complaint in complaints:
            printer.line(f"  The telephone provider objects: {complaint}")
        unaccounted = [one for one in outcomes if one.end == End.UNACCOUNTED]
        printer.line()
        printer.line(
            f"{len(unaccounted)} of {len(outcomes)} forms are unaccounted for."
            if unaccounted
            else f"All {len(outcomes)} forms are accounted for."
        )
        return 1 if unaccounted or complaints else 0


def _shown(log: IO[str], also: bool) -> Callable[[str, str], bool]:
    def shown(name: str, line: str) -> bool:
        log.write(f"{name} | {line}\n")
        log.flush()
        return also

    return shown
