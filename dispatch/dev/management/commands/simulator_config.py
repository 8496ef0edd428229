"""`manage.py simulator_config`: write the phone simulator's configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.dev.demo import phones


class Command(BaseCommand):
    """Write the configuration of the phone simulator from the database."""

    help = "Write the simulator's configuration (accounts, numbers, phones) and print the file's path."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--output", type=Path, help="default: simulator.json in the data folder")

    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEVELOPMENT:
            raise CommandError("The simulator requires DISPATCH_DEVELOPMENT=1.")
        path: Path = options["output"] or Path(settings.DATA_DIR) / "simulator.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(json.dumps(phones.simulator_config(), ensure_ascii=False, indent=1))
        self.stdout.write(str(path))
