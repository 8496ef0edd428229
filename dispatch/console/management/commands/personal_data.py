"""`manage.py personal_data export|erase --organization SLUG` with --phone, --email, --technician or --user."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.console.privacy import lookup
from dispatch.console.privacy.chains import find_organization
from dispatch.core.events import Actor
from dispatch.core.privacy import personal_data

OPERATOR = Actor(label="An operator")


class Command(BaseCommand):
    """Find the person by one option, then export or erase the data."""

    help = "Export a person's data as JSON, or erase what identifies them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=["export", "erase"])
        parser.add_argument("--organization", required=True, help="The organization's slug.")
        parser.add_argument("--phone", default="", help="Phone number of a customer or lead.")
        parser.add_argument("--email", default="", help="Email of a customer.")
        parser.add_argument("--technician", default="", help="The technician's id.")
        parser.add_argument("--user", default="", help="Email of a member.")
        parser.add_argument(
            "--output", default="-", help=("For export: the file to write, or - for standard output.")
        )
        parser.add_argument(
            "--yes", action="store_true", help=("For erase: skip the confirmation. This can't be undone.")
        )

    def handle(self, *args: Any, **options: Any) -> None:
        organization = find_organization(options["organization"])
        named = {name: options[name] for name in ("phone", "email", "technician", "user")}
        try:
            person = lookup.find_person(organization, **named)
        except lookup.AmbiguousPerson as error:
            raise CommandError(str(error)) from None
        if options["what"] == "export":
            self._export(person, options["output"])
        else:
            self._erase(person, asked=not options["yes"])

    def _export(self, person: personal_data.DataSubject, output: str) -> None:
        person = replace(person, is_whole_account=True)
        text = json.dumps(personal_data.export_person(person, actor=OPERATOR), indent=2)
        if output == "-":
            self.stdout.write(text)
        else:
            Path(output).write_text(f"{text}\n")

    def _erase(self, person: personal_data.DataSubject, *, asked: bool) -> None:
        if asked:
            if not sys.stdin.isatty():
                raise CommandError("This can't be undone. Add --yes to confirm.")
            if input("This can't be undone. Type erase to continue:") != "erase":
                raise CommandError("Nothing was changed.")
        try:
            counts = personal_data.erase_person(person, actor=OPERATOR)
        except personal_data.StillNeeded as error:
            raise CommandError(str(error)) from None
        self.stdout.write(", ".join(f"{name}: {count}" for name, count in counts.items()) or "Nothing found.")
