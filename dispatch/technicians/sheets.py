"""Technicians as a table: written out, and read again line by line, first as a plan that writes nothing.

Columns: id, name, phone, lat, lng, zip, skills (codes, spaces between), time_zone, radius_m, max_open_jobs,
on_duty, is_active. A line is an existing technician by its id, else by the phone of an active one, else a new one.
A column that is not in the file changes nothing; an empty cell empties skills, time_zone and radius_m, and leaves
the others as they are. `zip` is looked at only where lat and lng are empty. Shifts are edited on the technician's
page."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError
from phonenumber_field.phonenumber import PhoneNumber

from accounts.models import Organization
from dispatch.core import zips
from dispatch.core.events import Actor
from dispatch.core.ids import read_id
from dispatch.core.spreadsheets import safe, unsafe
from dispatch.technicians import editing
from dispatch.technicians.models import Skill, Technician

MOST = 2_000
WRITTEN = (
    "id", "name", "phone", "lat", "lng", "skills", "time_zone", "radius_m", "max_open_jobs",
    "on_duty", "is_active",
)  # fmt: skip
COLUMNS = (*WRITTEN, "zip")
_EMPTIED = ("time_zone", "radius_m", "skills")
_YES, _NO = {"yes", "true", "1", "on", "y"}, {"no", "false", "0", "off", "n"}
_APART = re.compile(r"[\s,;|]+")


@dataclass(frozen=True)
class Change:
    """One field's values in words: before ("" for a new technician) and after."""

    name: str
    before: str
    after: str


@dataclass
class Line:
    """What one line of the file would do. `technician` is None for a new one; `values` are the fields to be
    written, `skills` those it should have (None: as they are); `errors` (column, words) keep it out."""

    number: int
    name: str = ""
    technician: Technician | None = None
    values: dict[str, Any] = field(default_factory=dict)
    skills: list[Skill] | None = None
    changes: list[Change] = field(default_factory=list)
    errors: list[tuple[str, str]] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        """`wrong`, `new`, `changed` or `same`."""
        if self.errors:
            return "wrong"
        if self.technician is None:
            return "new"
        return "changed" if self.changes else "same"


@dataclass
class Plan:
    """All lines of a file; `unknown` are the columns that mean nothing here."""

    lines: list[Line]
    unknown: list[str]

    def of(self, *verdicts: str) -> list[Line]:
        return [line for line in self.lines if line.verdict in verdicts]

    @property
    def digest(self) -> str:
        """Of what would be written: another one when something that matters has changed since."""
        what = [
            (
                line.number,
                line.verdict,
                line.technician and line.technician.pk,
                [(c.name, c.after) for c in line.changes],
            )
            for line in self.lines
        ]
        return hashlib.sha256(repr(what).encode()).hexdigest()


def written(rows: Iterable[Technician]) -> Iterator[list[Any]]:
    """Cells in the order of WRITTEN; skills should be prefetched."""
    for one in rows:
        skills = " ".join(sorted(skill.code for skill in one.skills.all()))
        radius = "" if one.radius_m is None else one.radius_m
        yield [
            one.pk, safe(one.name), safe(str(one.phone)), one.lat, one.lng, safe(skills), safe(one.time_zone),
            radius, one.max_open_jobs, _words(one.on_duty), _words(one.is_active),
        ]  # fmt: skip


def plan(organization: Organization, rows: list[tuple[int, dict[str, str]]]) -> Plan:
    """What the rows (as `spreadsheets.rows_of` gives them) would do. Three queries; nothing is written."""
    reader = _Reader(organization)
    unknown = sorted({name for _, cells in rows for name in cells if name and name not in COLUMNS})
    return Plan([reader.line(number, cells) for number, cells in rows], unknown)


def apply(line: Line, organization: Organization, *, actor: Actor) -> Technician:
    """Writes a line without errors. Raises ValidationError when somebody took its phone meanwhile."""
    try:
        if line.technician is None:
            return editing.create_technician(organization, line.values, skills=line.skills or ())
        return editing.change_technician(line.technician.pk, line.values, skills=line.skills, actor=actor)
    except IntegrityError:
        raise ValidationError("Another technician has this phone by now.") from None


class _Reader:
    def __init__(self, organization: Organization) -> None:
        self.organization = organization
        crew = list(Technician.objects.of(organization).prefetch_related("skills"))
        self.by_id = {one.pk: one for one in crew}
        self.by_phone = {str(one.phone): one for one in crew if one.is_active}
        self.skills = {skill.code: skill for skill in Skill.objects.of(organization)}
        self.phones: dict[str, int] = {}
        self.seen: dict[int, int] = {}

    def line(self, number: int, cells: dict[str, str]) -> Line:
        """One line, on its own and beside those before it."""
        cells = {name: unsafe(text) for name, text in cells.items() if name in COLUMNS}
        line = Line(number, name=cells.get("name", ""))
        values = self._read(line, cells)
        line.technician = self._who(line, cells, str(values.get("phone", "")))
        if line.technician is None:
            self._complete(line, values)
        else:
            line.name = line.name or line.technician.name
        self._place(line, cells, values)
        self._check(line, values)
        self._compare(line, values)
        return line

    def _read(self, line: Line, cells: dict[str, str]) -> dict[str, Any]:
        """Each cell as its field's value; what cannot be read is an error of the line."""
        values: dict[str, Any] = {}
        for name, text in cells.items():
            if name in ("id", "zip") or not (text or name in _EMPTIED):
                continue
            try:
                values[name] = self._value(name, text)
            except ValueError as error:
                line.errors.append((name, str(error)))
        return values

    def _value(self, name: str, text: str) -> Any:
        match name:
            case "phone":
                phone = PhoneNumber.from_string(text, region=self.organization.default_region or None)
                if not phone.is_valid():
                    raise ValueError("This is no phone number. Write it as +16025550134.")
                return phone
            case "lat" | "lng":
                return _degrees(text, 90 if name == "lat" else 180)
            case "skills":
                return self._skills(text)
            case "radius_m":
                return _whole(text) if text else None
            case "max_open_jobs":
                return _whole(text)
            case "on_duty" | "is_active":
                return _yes(text)
        return text

    def _skills(self, text: str) -> list[Skill]:
        codes = list(dict.fromkeys(code for code in _APART.split(text) if code))
        if missing := [code for code in codes if code not in self.skills]:
            raise ValueError(f"There is no skill with the code {', '.join(missing)}. Add it first.")
        return [self.skills[code] for code in codes]

    def _who(self, line: Line, cells: dict[str, str], phone: str) -> Technician | None:
        if text := cells.get("id"):
            found = self.by_id.get(read_id(text) or 0)
            if found is None:
                line.errors.append(("id", "There is no technician with this id. Leave it empty to add them."))
        else:
            found = self.by_phone.get(phone)
        if found is not None and (before := self.seen.setdefault(found.pk, line.number)) != line.number:
            line.errors.append(("id", f"Line {before} is the same technician."))
        return found

    def _complete(self, line: Line, values: dict[str, Any]) -> None:
        """What a new one needs."""
        wrong = {name for name, _ in line.errors}
        line.errors += [
            (name, "A new technician needs one.")
            for name in ("name", "phone")
            if name not in values and name not in wrong
        ]

    def _place(self, line: Line, cells: dict[str, str], values: dict[str, Any]) -> None:
        """The position: by lat and lng, else by ZIP code, else as it is."""
        wrong = {name for name, _ in line.errors}
        if wrong & {"lat", "lng"}:
            return
        given = {"lat", "lng"} & values.keys()
        if len(given) == 1:
            missing = "lng" if "lat" in given else "lat"
            line.errors.append((missing, "Give both lat and lng, or neither."))
        elif not given and (code := cells.get("zip", "")):
            try:
                values["lat"], values["lng"] = self._by_zip(code)
            except ValueError as error:
                line.errors.append(("zip", str(error)))
        elif not given and line.technician is None and "id" not in wrong:
            line.errors.append(("lat", "A new technician needs lat and lng, or a zip."))

    def _by_zip(self, code: str) -> tuple[float, float]:
        if self.organization.default_region not in zips.REGIONS:
            raise ValueError("ZIP codes are known for the United States only. Give lat and lng.")
        digits = re.fullmatch(r"(\d{3,5})(-\d{4})?", code, re.ASCII)
        # Spreadsheets drop the zeros in front: 2134 is 02134.
        position = zips.zip_position(digits[1].zfill(5)) if digits else None
        if position is None:
            raise ValueError("This ZIP code is not known. Give lat and lng.")
        return position[0], position[1]

    def _check(self, line: Line, values: dict[str, Any]) -> None:
        """The fields' own rules, and one active technician per phone."""
        wrong = {name for name, _ in line.errors}
        for name, value in values.items():
            if name == "skills" or name in wrong:
                continue
            try:
                Technician._meta.get_field(name).clean(value, None)  # type: ignore[union-attr]
            except ValidationError as error:
                line.errors.append((name, " ".join(error.messages)))
        before = line.technician
        if not values.get("is_active", before.is_active if before else True):
            return
        phone = str(values.get("phone", before.phone if before else ""))
        owner = self.by_phone.get(phone)
        if owner is not None and owner is not before:
            line.errors.append(("phone", f"{owner.name} has this phone."))
        if phone and (first := self.phones.setdefault(phone, line.number)) != line.number:
            line.errors.append(("phone", f"Line {first} has this phone too."))

    def _compare(self, line: Line, values: dict[str, Any]) -> None:
        """Keeps what differs from what is there."""
        skills = values.pop("skills", None)
        before = line.technician
        for name, value in values.items():
            old = getattr(before, name) if before else ""
            if before is None or old != value:
                line.values[name] = value
                line.changes.append(Change(name, "" if before is None else _words(old), _words(value)))
        if {"lat", "lng"} & line.values.keys():
            line.values |= {"lat": values["lat"], "lng": values["lng"]} if {"lat", "lng"} <= values.keys() else {}
        if skills is not None:
            had = sorted(skill.code for skill in before.skills.all()) if before else []
            now = sorted(skill.code for skill in skills)
            if had != now:
                line.skills = skills
                line.changes.append(
                    Change("skills", _words(" ".join(had)) if before else "", _words(" ".join(now)))
                )


def _degrees(text: str, limit: int) -> float:
    try:
        value = float(text.replace(",", ".") if text.count(",") == 1 else text)
    except ValueError:
        value = math.nan
    if not -limit <= value <= limit:
        raise ValueError(f"This must be degrees from -{limit} to {limit}.")
    return value


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("This must be a whole number.")
    return int(text)


def _yes(text: str) -> bool:
    if text.lower() not in _YES | _NO:
        raise ValueError("Write yes or no.")
    return text.lower() in _YES


def _words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "—" if value in (None, "") else str(value)
