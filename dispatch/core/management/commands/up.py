"""Runs the whole site on this machine."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from dispatch.core import site
from dispatch.core.supervisor import NotReady


class Command(BaseCommand):
    help = "Runs web, workers, dispatcher and (development) the simulator until Ctrl-C."
    requires_system_checks = ()  # `prepare` runs them, and says what is wrong in plain lines

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            prepared = site.prepare()
        except site.CannotStart as error:
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
                    supervisor.say(f"{error} It goes on trying.")
            else:
                supervisor.write(_banner(prepared))
            supervisor.run()
        self.stdout.write("Stopped.")


def _banner(prepared: site.Site) -> str:
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
        lines += site.demo_hints()
    lines += ["Ctrl-C stops everything.", ""]
    return "\n".join(lines)
