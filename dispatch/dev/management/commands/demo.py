"""`manage.py demo`: show the main flow without a browser."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.runtime.supervisor import NotReady
from dispatch.dev import stack
from dispatch.dev.demo.lines import FILE, load
from dispatch.dev.demo.outage import OutageFacts
from dispatch.dev.demo.printing import Printer
from dispatch.dev.demo.report import End, Outcome, table
from dispatch.dev.demo.run import Run

INTERRUPTED = 130
START_TIMEOUT_S = 300.0  # enough even on a busy machine


class Command(BaseCommand):
    """Run the demo on a temporary stack, and exit with 1 if a form is unaccounted for."""

    help = (
        "Start Dispatch, submit forms through its API, let simulated technicians answer in time and too late, "
        "play an outage of the phone provider, and print a summary."
    )
    requires_system_checks = ()  # `prepare_stack` runs them, and reports problems in plain lines

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--seed", type=int, default=7, help="random seed of phone behavior and form timing")
        parser.add_argument("--file", type=Path, default=FILE, help="file of forms, one JSON object per line")
        parser.add_argument("--logs", action="store_true", help="also print the logs of the processes")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEVELOPMENT:
            raise CommandError("The demo requires DISPATCH_DEVELOPMENT=1.")
        printer = Printer(sys.stdout)
        log_path = Path(settings.DATA_DIR) / "demo.log"
        log_path.parent.mkdir(parents=True, exist_ok=True)
        try:
            lines = load(options["file"])
            with log_path.open("w", encoding="utf-8") as log:
                failed = self._run(lines, printer, options["seed"], _shown(log, options["logs"]))
        except KeyboardInterrupt:  # while still preparing
            sys.exit(INTERRUPTED)
        except (stack.CannotStart, NotReady, ValueError, OSError) as error:
            raise CommandError(str(error)) from error
        if failed == INTERRUPTED:
            sys.exit(failed)
        if failed:
            printer.line(f"The logs of the processes are in {log_path}.")
            sys.exit(failed)

    def _run(self, lines: list[Any], printer: Printer, seed: int, show: Callable[[str, str], bool]) -> int:
        printer.line("Starting PostgreSQL, Valkey, web, workers, dispatcher and the phone simulator …")
        prepared = stack.prepare_stack(show=show, usual_ports=False)
        supervisor = prepared.supervisor
        outcomes: list[Outcome] = []
        complaints: list[str] = []
        outage: OutageFacts | None = None
        with supervisor.interruptible(), supervisor:
            try:
                supervisor.wait_ready(timeout=START_TIMEOUT_S)
                run = Run(
                    prepared.base_url,
                    prepared.simulator_url,
                    lines,
                    printer,
                    chance=seed,
                    interrupted=lambda: supervisor.interrupted,
                )
                printer.line(
                    f"Sending {len(lines)} forms to {prepared.base_url}. Columns: seconds, form number, form, "
                    "event.\n"
                )
                outcomes = run.run()
                complaints = run.complaints()
                outage = run.outage()
            except (NotReady, OSError):
                if not supervisor.interrupted:  # otherwise the stack was stopped while the run was using it
                    raise
        if supervisor.interrupted:
            printer.line("Stopped.")
            return INTERRUPTED
        printer.line()
        printer.title("Summary")
        for row in table(outcomes, outage):
            printer.line(row)
        for complaint in complaints:
            printer.line(f"  The phone provider reports an error: {complaint}")
        unaccounted = [outcome for outcome in outcomes if outcome.end == End.UNACCOUNTED]
        printer.line()
        printer.line(
            f"Unaccounted for: {len(unaccounted)} of {len(outcomes)} forms."
            if unaccounted
            else f"All {len(outcomes)} forms are accounted for."
        )
        return 1 if unaccounted or complaints or (outage is not None and outage.problems) else 0


def _shown(log: IO[str], also: bool) -> Callable[[str, str], bool]:
    def shown(name: str, line: str) -> bool:
        log.write(f"{name} | {line}\n")
        log.flush()
        return also

    return shown
