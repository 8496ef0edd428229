"""Verify the hash chains of the audit log; exit with 1 and name the first broken row of each broken chain."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from dispatch.console.privacy.chains import add_chain_arguments, read_chain
from dispatch.core.audit import chain, verification
from dispatch.core.audit.verification import BrokenChain, ChainReport
from dispatch.core.counts import count_noun
from dispatch.core.models import AuditRestart


@dataclass(frozen=True)
class Heads:
    """The end of a chain that was verified before: hash by position, and the number of restarts until then."""

    hashes: dict[int, str] = field(default_factory=dict)
    restarts: int = 0


class Command(BaseCommand):
    """`manage.py verify_audit_log [--organization SLUG | --installation] [--heads FILE]`."""

    help = (
        "Verify that no event of the audit log was changed, removed or inserted. Prints one line for each "
        "organization and one for the installation, or the first broken row and exit code 1. Restarts of "
        "broken chains are listed each time."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        add_chain_arguments(parser, required=False)
        parser.add_argument(
            "--heads",
            type=Path,
            help=(
                "A file outside the database with the ends of the chains that were verified before. They must "
                "still be in the chains; afterwards the file has the new ends. Detects a chain that was "
                "rolled back."
            ),
        )

    def handle(self, *args: Any, **options: Any) -> None:
        heads = _read(options["heads"])
        chosen = read_chain(options)
        ids = sorted({*verification.chained_organizations(), *heads}) if chosen is None else [chosen]
        broken = []
        for organization_id in ids:
            known = heads.get(organization_id, Heads())
            try:
                report = verification.verify_chain(organization_id, known.hashes, known.restarts)
            except BrokenChain as error:
                broken.append(str(error))
                continue
            if report.position:
                heads[organization_id] = Heads({report.position: report.head}, len(report.restarts))
            self.stdout.write(_describe(report))
            for restart in report.restarts:
                self.stdout.write(_describe_restart(restart))
        if options["heads"]:
            _write(options["heads"], heads)
        if broken:
            raise CommandError(" ".join(broken))


def _describe(report: ChainReport) -> str:
    return (
        f"{chain.name_chain(report.organization_id)}: {count_noun(report.sealed, 'sealed event')} up to "
        f"position {report.position}, {report.unsealed} not sealed yet, head {report.head or '-'}."
    )


def _describe_restart(restart: AuditRestart) -> str:
    return (
        f"{chain.name_chain(restart.organization_id)}: RESTARTED at {restart.at:%Y-%m-%d %H:%M:%S} UTC by "
        f"{restart.operator} ({restart.reason}), because it was broken: {restart.found}"
    )


def _read(path: Path | None) -> dict[int, Heads]:
    """Return the known ends by organization. A missing file has none."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    return {row["organization"]: Heads({row["position"]: row["head"]}, row.get("restarts", 0)) for row in rows}


def _write(path: Path, heads: dict[int, Heads]) -> None:
    """Replace the file atomically."""
    rows = [
        json.dumps(
            {"organization": organization_id, "position": position, "head": head, "restarts": known.restarts}
        )
        for organization_id, known in sorted(heads.items())
        for position, head in known.hashes.items()
    ]
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{row}\n" for row in rows))
    new.replace(path)
