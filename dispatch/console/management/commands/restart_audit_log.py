"""Restart the hash chain of a broken audit log, with a signed record of who, when and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.console.privacy.chains import add_chain_arguments, read_chain
from dispatch.core.audit import chain, export, restarts


class Command(BaseCommand):
    """`manage.py restart_audit_log --organization SLUG --operator NAME --reason TEXT --export FILE`."""

    help = (
        "Restart the hash chain of an audit log that `verify_audit_log` found broken. First the log is exported "
        "with its former seals; keep that file as evidence. `verify_audit_log` reports the restart from then on."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        add_chain_arguments(parser, required=True)
        parser.add_argument("--operator", required=True, help="Your name, for the record.")
        parser.add_argument(
            "--reason", required=True, help="What happened, for the record. Name no customers: it is never erased."
        )
        parser.add_argument("--export", type=Path, required=True, help="A new file for the log as it is now.")

    def handle(self, *args: Any, **options: Any) -> None:
        chain_id = read_chain(options)
        assert chain_id is not None
        try:
            with options["export"].open("x") as file:
                file.writelines(export.export_events(chain_id))
        except FileExistsError:
            raise CommandError(f"{options['export']} exists. Name a new file.") from None
        except OSError as error:
            raise CommandError(f"{options['export']} can't be written: {error.strerror}.") from None
        try:
            record = restarts.restart_chain(chain_id, operator=options["operator"][:120], reason=options["reason"])
        except restarts.ChainIsValid as error:
            raise CommandError(f"{error} Nothing was changed.") from None
        self.stdout.write(
            f"{chain.name_chain(chain_id)}: restart {record.number} recorded. It was broken: {record.found}"
        )
