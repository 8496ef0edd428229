"""Run the web process."""

from __future__ import annotations

import os
import stat
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.core.db import session_limits
from dispatch.core.runtime import connection_budget, preflight
from dispatch.core.web.server import run_server

LAST_PORT = 65_535


class Command(BaseCommand):
    """Check the configuration, then run the web server."""

    help = "Serves pages, API, webhooks and web sockets with uvicorn until stopped."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--host", default=settings.WEB_HOST)
        parser.add_argument("--port", type=int, default=settings.WEB_PORT)
        parser.add_argument("--fd", type=int, help="an inherited listening socket, instead of an address")

    def handle(self, *args: Any, **options: Any) -> None:
        if not 0 <= options["port"] <= LAST_PORT:
            raise CommandError(f"Can't listen on port {options['port']}: a port is a number up to {LAST_PORT}.")
        if options["fd"] is not None and not _is_socket(options["fd"]):
            raise CommandError(f"--fd {options['fd']} is not an inherited socket.")
        if not session_limits.is_web():
            raise CommandError("Start the web process with manage.py: it prepares the settings for it.")
        preflight.check()
        connection_budget.warn_if_too_many("web", connection_budget.of_web())
        trusted = settings.FORWARDED_ALLOW_IPS if settings.BEHIND_PROXY else ""
        run_server(options["host"], options["port"], fd=options["fd"], trusted_proxies=trusted)


def _is_socket(number: int) -> bool:
    try:
        return stat.S_ISSOCK(os.fstat(number).st_mode)
    except OSError:
        return False
