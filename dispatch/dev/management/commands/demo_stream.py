"""`manage.py demo_stream`: keep the demo organization busy."""

from __future__ import annotations

import random
import signal
import threading
import time
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from accounts.models import Organization
from dispatch.dev.demo import seed
from dispatch.dev.demo.client import Client
from dispatch.dev.demo.controls import Controls
from dispatch.dev.demo.stream import Stream


class Command(BaseCommand):
    """Submit forms until SIGTERM, and let the demo's technicians work and move."""

    help = "Submit a form to the demo organization every 20 to 60 s, and move its technicians (development only)."
    requires_system_checks = ()  # `manage.py up` has run them

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEVELOPMENT:
            raise CommandError("The demo requires DISPATCH_DEVELOPMENT=1.")
        stopped = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stopped.set())
        organization = Organization.objects.filter(slug=seed.MAIN_SLUG).first()
        if organization is None or not seed.key_file().exists():
            stopped.wait()  # no demo organization: nothing to do
            return
        client = Client(settings.PUBLIC_BASE_URL, {"": seed.key_file().read_text()})
        controls = Controls(settings.SIMULATOR_URL)
        Stream(organization, client, controls, random.Random(), now=time.monotonic()).run(stopped)
