"""`manage.py personal_data export|erase --organization SLUG` and --phone, --email, --technician or --user."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.console import persons
from dispatch.core import personal
from dispatch.core.events import Actor

OPERATOR = Actor(label="An operator")


class Command(BaseCommand):
    help = "Hands out what is kept of one person as JSON, or takes away what tells who it was."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("what", choices=["export", "erase"])
        parser.add_argument("--organization", required=True, help="Its slug.")
        parser.add_argument("--phone", default="", help="Of a customer or a lead.")
        parser.add_argument("--email", default="", help="Of a customer.")
        parser.add_argument("--technician", default="", help="The technician's id.")
        parser.add_argument("--user", default="", help="The e-mail of a member.")
        parser.add_argument("--output", default="-", help="Of an export: the file to write; -: standard output.")
        parser.add_argument("--yes", action="store_true", help="Of an erasure: do not ask. It cannot be undone.")

    def handle(self, *args: Any, **options: Any) -> None:
        organization = Organization.objects.filter(slug=options["organization"]).first()
        if organization is None:
            raise CommandError(f"There is no organization {options['organization']!r}.")
        named = {name: options[name] for name in ("phone", "email", "technician", "user")}
        try:
            person = persons.find(organization, **named)
        except persons.Unclear as error:
            raise CommandError(str(error)) from None
        if options["what"] == "export":
            self._export(person, options["output"])
        else:
            self._erase(person, asked=not options["yes"])

    def _export(self, person: personal.Person, output: str) -> None:
        text = json.dumps(personal.export(person, actor=OPERATOR), indent=2)
        if output == "-":
            self.stdout.write(text)
        else:
            Path(output).write_text(f"{text}\n")

    def _erase(self, person: personal.Person, *, asked: bool) -> None:
        if asked:
            if not sys.stdin.isatty():
                raise CommandError("This cannot be undone. Say --yes if it is meant.")
            if input("This cannot be undone. Type erase to go on: ") != "erase":
                raise CommandError("Nothing was changed.")
        try:
            counts = personal.erase(person, actor=OPERATOR)
        except personal.StillNeeded as error:
            raise CommandError(str(error)) from None
        self.stdout.write(", ".join(f"{name}: {count}" for name, count in counts.items()) or "There was nothing.")
