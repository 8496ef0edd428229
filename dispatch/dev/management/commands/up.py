"""`manage.py up`: run the whole stack on this machine."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.runtime.supervisor import NotReady
from dispatch.dev import stack


class Command(BaseCommand):
    """Run the whole stack until Ctrl-C."""

    help = (
        "Run web, workers, dispatcher and (development) the simulator until Ctrl-C. In development, a demo "
        "organization with a history is created first, and new forms keep arriving."
    )
    requires_system_checks = ()  # `prepare_stack` runs them, and reports problems in plain lines

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--quiet",
            action="store_true",
            help="send no new forms and move no technicians in the demo organization (development)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            prepared = stack.prepare_stack(history=True, stream=not options["quiet"])
        except stack.CannotStart as error:
            raise CommandError(str(error)) from error
        except KeyboardInterrupt:
            self.stdout.write("Stopped.")
            return
        supervisor = prepared.supervisor
        for note in prepared.notes:
            supervisor.say(note)
        with supervisor.interruptible(), supervisor:
            try:
                supervisor.wait_ready()
            except NotReady as error:
                if not supervisor.interrupted:
                    supervisor.say(f"{error} Still trying.")
            else:
                supervisor.write(_banner(prepared))
            supervisor.run()
        self.stdout.write("Stopped.")


def _banner(prepared: stack.Stack) -> str:
    lines = [
        "",
        f"Dispatch is up:  {prepared.base_url}",
        f"  admin          {prepared.base_url}/admin/",
        f"  API            {prepared.base_url}/api/v1/docs/",
    ]
    if prepared.simulator_url:
        lines.append(
            f"  phone calls    {prepared.simulator_url}/control/calls  (as the simulated phones see them)"
        )
    if settings.DEVELOPMENT:
        lines.append(f"  phones         {prepared.base_url}/phones/  (play the technician)")
        lines += stack.newcomer_tips()
    lines += ["Press Ctrl-C to stop everything.", ""]
    return "\n".join(lines)
