"""Export technicians as CSV, and import them in two steps: plan the changes, then apply them row by row.

Columns: id, name, phone, lat, lng, zip, skills (codes, space-separated), time_zone, radius_m, max_open_jobs,
on_duty, is_active. A row matches an existing technician by id, else an active technician by phone; otherwise it
adds a technician. A missing column changes nothing. An empty cell clears skills, time_zone and radius_m, and
leaves other fields unchanged. `zip` is used only if lat and lng are empty. Shifts are edited on the technician's
page.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, OperationalError

from accounts.models import Organization
from dispatch.core import zips
from dispatch.core.csv_files import escape_formula, unescape_formula
from dispatch.core.db.errors import is_conflict
from dispatch.core.events import Actor
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext
from dispatch.core.phone_numbers import parse_phone
from dispatch.technicians import services
from dispatch.technicians.models import Skill, Technician

MAX_ROWS = 2_000
EXPORTED = (
    "id", "name", "phone", "lat", "lng", "skills", "time_zone", "radius_m", "max_open_jobs",
    "on_duty", "is_active",
)  # fmt: skip
COLUMNS = (*EXPORTED, "zip")
_CLEARABLE = ("time_zone", "radius_m", "skills")
_YES, _NO = {"yes", "true", "1", "on", "y"}, {"no", "false", "0", "off", "n"}
_SEPARATORS = re.compile(r"[\s,;|]+")


@dataclass(frozen=True)
class Change:
    """The change of one field as text: before ("" for a new technician) and after."""

    name: str
    before: str
    after: str


@dataclass
class ImportRow:
    """The effect of one row of the file.

    `technician` is None for a row that adds one. `values`: fields to write. `skills`: the skills to set; None
    leaves them unchanged. A row with `errors` (column, message) is not imported.
    """

    number: int
    name: str = ""
    technician: Technician | None = None
    values: dict[str, Any] = field(default_factory=dict)
    skills: list[Skill] | None = None
    changes: list[Change] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """Return `wrong`, `new`, `changed` or `same`."""
        if self.errors:
            return "wrong"
        if self.technician is None:
            return "new"
        return "changed" if self.changes else "same"


@dataclass
class ImportPlan:
    """All rows of a file. `unknown`: columns that are ignored."""

    lines: list[ImportRow]
    unknown: list[str]

    def of(self, *verdicts: str) -> list[ImportRow]:
        return [line for line in self.lines if line.verdict in verdicts]

    @property
    def digest(self) -> str:
        """Return a hash of the planned changes. It changes when the data behind them changes."""
        content = [
            (
                line.number,
                line.verdict,
                line.technician and line.technician.pk,
                [(c.name, c.after) for c in line.changes],
            )
            for line in self.lines
        ]
        return hashlib.sha256(repr(content).encode()).hexdigest()


def export_rows(rows: Iterable[Technician]) -> Iterator[list[Any]]:
    """Yield a row of cells in the order of EXPORTED. Prefetch `skills` for speed."""
    for technician in rows:
        skills = " ".join(sorted(skill.code for skill in technician.skills.all()))
        radius = "" if technician.radius_m is None else technician.radius_m
        yield [
            technician.pk, escape_formula(technician.name), escape_formula(str(technician.phone)),
            technician.lat, technician.lng, escape_formula(skills), escape_formula(technician.time_zone),
            radius, technician.max_open_jobs,
            _display(technician.on_duty), _display(technician.is_active),
        ]  # fmt: skip


def plan_import(organization: Organization, rows: list[tuple[int, dict[str, str]]]) -> ImportPlan:
    """Plan the import of parsed CSV rows. Runs three queries and writes nothing."""
    reader = _Reader(organization)
    unknown = sorted({name for _, cells in rows for name in cells if name and name not in COLUMNS})
    return ImportPlan([reader.line(number, cells) for number, cells in rows], unknown)


def apply_row(line: ImportRow, organization: Organization, *, actor: Actor) -> Technician:
    """Write a row that has no errors.

    Raises ValidationError if another technician now has its phone number, or if the technician is locked.
    """
    try:
        if line.technician is None:
            return services.create_technician(organization, line.values, skills=line.skills or ())
        return services.change_technician(line.technician.pk, line.values, skills=line.skills, actor=actor)
    except services.OpenJobs as error:
        raise ValidationError(str(error.detail)) from None
    except IntegrityError:
        raise ValidationError(gettext("Another technician now has this phone number.")) from None
    except OperationalError as error:
        if not is_conflict(error):
            raise
        raise ValidationError(
            gettext("Someone else is changing this technician. Try again in a moment.")
        ) from None


class _Reader:
    def __init__(self, organization: Organization) -> None:
        self.organization = organization
        technicians = list(Technician.objects.of(organization).prefetch_related("skills"))
        self.by_id = {technician.pk: technician for technician in technicians}
        self.by_phone = {str(technician.phone): technician for technician in technicians if technician.is_active}
        self.skills = {skill.code: skill for skill in Skill.objects.of(organization)}
        self.phones: dict[str, int] = {}
        self.seen: dict[int, int] = {}

    def line(self, number: int, cells: dict[str, str]) -> ImportRow:
        """Validate one row, also against the rows before it."""
        cells = {name: unescape_formula(text) for name, text in cells.items() if name in COLUMNS}
        line = ImportRow(number, name=cells.get("name", ""))
        values = self._parse_cells(line, cells)
        line.technician = self._find_technician(line, cells, str(values.get("phone", "")))
        if line.technician is None:
            self._check_required(line, values)
        else:
            line.name = line.name or line.technician.name
        self._set_position(line, cells, values)
        self._validate(line, values)
        self._keep_changes(line, values)
        return line

    def _parse_cells(self, line: ImportRow, cells: dict[str, str]) -> dict[str, Any]:
        """Parse each cell into its field's value, and collect the errors."""
        values: dict[str, Any] = {}
        for name, text in cells.items():
            if name in ("id", "zip") or not (text or name in _CLEARABLE):
                continue
            try:
                values[name] = self._parse_value(name, text)
            except ValueError as error:
                line.errors.append((name, str(error)))
        return values

    def _parse_value(self, name: str, text: str) -> Any:
        match name:
            case "phone":
                return parse_phone(text, self.organization.default_region)
            case "lat" | "lng":
                return _parse_degrees(text, 90 if name == "lat" else 180)
            case "skills":
                return self._parse_skills(text)
            case "radius_m":
                return _parse_whole(text) if text else None
            case "max_open_jobs":
                return _parse_whole(text)
            case "on_duty" | "is_active":
                return _parse_bool(text)
        return text

    def _parse_skills(self, text: str) -> list[Skill]:
        codes = list(dict.fromkeys(code for code in _SEPARATORS.split(text) if code))
        if missing := [code for code in codes if code not in self.skills]:
            raise ValueError(f"Unknown skill code: {', '.join(missing)}. Add it first.")
        return [self.skills[code] for code in codes]

    def _find_technician(self, line: ImportRow, cells: dict[str, str], phone: str) -> Technician | None:
        if text := cells.get("id"):
            technician = self.by_id.get(read_id(text) or 0)
            if technician is None:
                line.errors.append(("id", "No technician has this id. Leave it empty to add a technician."))
        else:
            technician = self.by_phone.get(phone)
        if technician is not None and (before := self.seen.setdefault(technician.pk, line.number)) != line.number:
            line.errors.append(("id", f"Row {before} has the same technician."))
        return technician

    def _check_required(self, line: ImportRow, values: dict[str, Any]) -> None:
        """Check the required fields of a new technician."""
        rejected = {name for name, _ in line.errors}
        line.errors += [
            (name, "Required for a new technician.")
            for name in ("name", "phone")
            if name not in values and name not in rejected
        ]

    def _set_position(self, line: ImportRow, cells: dict[str, str], values: dict[str, Any]) -> None:
        """Set the position from lat and lng, else from the ZIP code; otherwise leave it unchanged."""
        rejected = {name for name, _ in line.errors}
        if rejected & {"lat", "lng"}:
            return
        coordinates = {"lat", "lng"} & values.keys()
        if len(coordinates) == 1:
            missing = "lng" if "lat" in coordinates else "lat"
            line.errors.append((missing, "Enter both lat and lng, or neither."))
        elif not coordinates and (code := cells.get("zip", "")):
            try:
                values["lat"], values["lng"] = self._position_of_zip(code)
            except ValueError as error:
                line.errors.append(("zip", str(error)))
        elif not coordinates and line.technician is None and "id" not in rejected:
            line.errors.append(("lat", "A new technician needs lat and lng, or a zip."))

    def _position_of_zip(self, code: str) -> tuple[float, float]:
        if self.organization.default_region not in zips.REGIONS:
            raise ValueError("ZIP codes work only in the United States. Enter lat and lng.")
        digits = re.fullmatch(r"(\d{3,5})(-\d{4})?", code, re.ASCII)
        # Spreadsheets drop leading zeros: 2134 is 02134.
        position = zips.zip_position(digits[1].zfill(5)) if digits else None
        if position is None:
            raise ValueError("Unknown ZIP code. Enter lat and lng.")
        return position[0], position[1]

    def _validate(self, line: ImportRow, values: dict[str, Any]) -> None:
        """Run the fields' validators, and check that each phone belongs to one active technician."""
        rejected = {name for name, _ in line.errors}
        for name, value in values.items():
            if name == "skills" or name in rejected:
                continue
            try:
                Technician._meta.get_field(name).clean(value, None)  # type: ignore[union-attr]
            except ValidationError as error:
                line.errors.append((name, " ".join(error.messages)))
        before = line.technician
        if not values.get("is_active", before.is_active if before else True):
            if before is not None and before.is_active and before.open_jobs:
                line.errors.append(("is_active", "Has open jobs. Deactivate them on their page instead."))
            return
        phone = str(values.get("phone", before.phone if before else ""))
        owner = self.by_phone.get(phone)
        if owner is not None and owner is not before:
            line.errors.append(("phone", f"{owner.name} has this phone number."))
        if phone and (first := self.phones.setdefault(phone, line.number)) != line.number:
            line.errors.append(("phone", f"Row {first} has the same phone number."))

    def _keep_changes(self, line: ImportRow, values: dict[str, Any]) -> None:
        """Keep only the values that differ from the technician's."""
        skills = values.pop("skills", None)
        before = line.technician
        for name, value in values.items():
            old = getattr(before, name) if before else ""
            if before is None or old != value:
                line.values[name] = value
                line.changes.append(Change(name, "" if before is None else _display(old), _display(value)))
        if {"lat", "lng"} & line.values.keys():
            line.values |= {"lat": values["lat"], "lng": values["lng"]} if {"lat", "lng"} <= values.keys() else {}
        if skills is not None:
            had = sorted(skill.code for skill in before.skills.all()) if before else []
            now = sorted(skill.code for skill in skills)
            if had != now:
                line.skills = skills
                line.changes.append(
                    Change("skills", _display(" ".join(had)) if before else "", _display(" ".join(now)))
                )


def _parse_degrees(text: str, limit: int) -> float:
    try:
        value = float(text.replace(",", ".") if text.count(",") == 1 else text)
    except ValueError:
        value = math.nan
    if not -limit <= value <= limit:
        raise ValueError(f"Must be degrees from -{limit} to {limit}.")
    return value


def _parse_whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("Must be a whole number.")
    return int(text)


def _parse_bool(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise ValueError("Must be yes or no.")
    return text.lower() in _YES


def _display(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "—" if value in (None, "") else str(value)
