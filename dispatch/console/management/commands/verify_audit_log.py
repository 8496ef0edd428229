"""Verify the hash chains of the audit log; exit with 1 and name the first broken row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from accounts.models import Organization
from dispatch.core.audit import verification
from dispatch.core.audit.verification import BrokenChain, ChainReport


class Command(BaseCommand):
    """`manage.py verify_audit_log [--organization SLUG] [--heads FILE]`."""

    help = (
        "Verify that no event of the audit log was changed, removed or inserted. Prints one line for each "
        "organization, or the first broken row and exit code 1."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--organization", default="", help="The organization's slug. Default: all.")
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
        ids = sorted({*verification.chained_organizations(), *heads})
        if options["organization"]:
            organization = Organization.objects.filter(slug=options["organization"]).first()
            if organization is None:
                raise CommandError(f"Unknown organization: {options['organization']!r}.")
            ids = [organization.pk]
        for organization_id in ids:
            known = heads.setdefault(organization_id, {})
            try:
                report = verification.verify_chain(organization_id, known)
            except BrokenChain as broken:
                raise CommandError(str(broken)) from None
            if report.position:
                heads[organization_id] = {report.position: report.head}
            self.stdout.write(_describe(report))
        if options["heads"]:
            _write(options["heads"], heads)


def _describe(report: ChainReport) -> str:
    return (
        f"Organization {report.organization_id}: {report.sealed} sealed events up to position {report.position}, "
        f"{report.unsealed} not sealed yet, head {report.head or '-'}."
    )


def _read(path: Path | None) -> dict[int, dict[int, str]]:
    """Return the hashes by organization and position. A missing file has none."""
    if path is None or not path.exists():
        return {}
    rows = [json.loads(row) for row in path.read_text().splitlines()]
    return {row["organization"]: {row["position"]: row["head"]} for row in rows}


def _write(path: Path, heads: dict[int, dict[int, str]]) -> None:
    """Replace the file atomically."""
    rows = [
        json.dumps({"organization": organization_id, "position": position, "head": head})
        for organization_id, known in sorted(heads.items())
        for position, head in known.items()
    ]
    new = path.with_name(f"{path.name}.new")
    new.write_text("".join(f"{row}\n" for row in rows))
    new.replace(path)
