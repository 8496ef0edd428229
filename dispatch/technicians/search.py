"""Find technicians near a location, with their eligibility and the reason. Reads only, and may lock one row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.db import prepared
from dispatch.technicians import road_times, rules, sql
from dispatch.technicians.fields import spans_of
from dispatch.technicians.h3_cells import spans_around
from dispatch.technicians.models import Skill, Technician
from dispatch.technicians.road_times import Position
from dispatch.technicians.rules import JobTime


class Nearby(NamedTuple):
    """A technician relative to a location.

    `distance_m` is in meters, as a straight line; `travel_s` is the drive in seconds, if known. `verdict` is `in`,
    `deferred` or `out`. `open_jobs`: those that count toward the limit at the time of the search. `code` is a
    reason code of `rules`; `reason` is its text in the organization's unit.
    """

    technician_id: int
    organization_id: int
    name: str
    phone: str
    lat: float
    lng: float
    open_jobs: int
    max_open_jobs: int
    live_offer_id: int | None
    last_offered_at: datetime | None
    distance_m: int
    verdict: str
    code: str
    reason: str
    skill_ids: tuple[int, ...] = ()
    travel_s: int | None = None

    @property
    def is_in(self) -> bool:
        return self.verdict == "in"


@dataclass(frozen=True)
class NearResult:
    """The result of a search.

    `considered`: the nearest technicians who are in or deferred, then the nearest who are out. `rest`: the number
    of others within the radius, by reason code (see `rules.rest_words`).
    """

    considered: list[Nearby]
    rest: dict[str, int]


class TechnicianActivity(NamedTuple):
    """A technician and their state: on_offer, off, auto_paused, on_job, off_shift or available."""

    id: int
    name: str
    open_jobs: int
    max_open_jobs: int
    misses: int
    state: str


class _Row(NamedTuple):
    """One row of `sql.NEAR` or `sql.ONE`."""

    id: int
    organization_id: int
    name: str
    phone: str
    lat: float
    lng: float
    skill_ids: list[int]
    hours: Any
    radius_m: int | None
    open_jobs: int
    max_open_jobs: int
    live_offer_id: int | None
    last_offered_at: datetime | None
    time_zone: str
    misses: int
    distance_m: float
    code: str


def find_nearby(
    organization: Organization,
    lat: float,
    lng: float,
    *,
    radius_m: int,
    skill_ids: Iterable[int],
    limit: int = 50,
    during: JobTime | None = None,
) -> NearResult:
    """Find the technicians within `radius_m` meters of a position in degrees, and their eligibility.

    Eligible technicians have all of `skill_ids`. `during`: when the job takes place (default: now); open jobs at
    other times don't count toward a technician's limit. Ties in distance go to the lower id.
    """
    required = sorted(set(skill_ids))
    now = clock.now()
    spans = spans_around(lat, lng, radius_m)
    results = _run(
        sql.NEAR,
        {
            "organization_id": organization.pk,
            "lows": [low for low, _ in spans],
            "highs": [high for _, high in spans],
            "limit": limit,
            **_parameters(organization, lat, lng, radius_m, required, now, during),
        },
    )
    rest: dict[str, int] = json.loads(results[0][-1]) if results else {}
    rows = [_Row(*columns[:-1]) for columns in results]
    for row in rows:
        rest[row.code] -= 1
    considered = _describe_rows(rows, organization, Position(lat, lng), radius_m, required, now, during=during)
    return NearResult(considered, {code: count for code, count in sorted(rest.items()) if count})


def check_fitness(
    technician_id: int,
    lat: float,
    lng: float,
    *,
    radius_m: int,
    skill_ids: Iterable[int],
    organization: Organization | None = None,
    lock: bool = False,
    ranked: tuple[int, int | None] | None = None,
    during: JobTime | None = None,
) -> Nearby:
    """Return one technician with their current eligibility, by the rules of the search.

    Raises Technician.DoesNotExist. With `lock`, their row stays locked until the end of the caller's transaction.
    `organization`: the technician's organization, to save a query. `ranked`: their distance and drive in an
    earlier ranking; the drive counts unless they have moved. `during`: see `find_nearby`.
    """
    if organization is None:
        of_theirs = Technician.objects.filter(pk=technician_id).values("organization_id")
        organization = Organization.objects.filter(pk__in=of_theirs).first()
    if organization is None:
        raise Technician.DoesNotExist(f"Technician {technician_id} does not exist.")
    statement = sql.ONE_LOCKED if lock else sql.ONE
    found = _find_one(
        statement, technician_id, organization, Position(lat, lng), radius_m, skill_ids, ranked, during
    )
    if found is None:
        raise Technician.DoesNotExist(f"Technician {technician_id} does not exist.")
    return found


def lock_unlocked(
    technician_id: int,
    lat: float,
    lng: float,
    *,
    radius_m: int,
    skill_ids: Iterable[int],
    organization: Organization,
    ranked: tuple[int, int | None] | None = None,
    during: JobTime | None = None,
) -> Nearby | None:
    """Lock the technician and return what `check_fitness` does, or None if another session has the row locked."""
    place = Position(lat, lng)
    return _find_one(sql.ONE_UNLOCKED, technician_id, organization, place, radius_m, skill_ids, ranked, during)


def find_busy(
    ranked: Mapping[int, tuple[int, int | None]],
    lat: float,
    lng: float,
    *,
    radius_m: int,
    skill_ids: Iterable[int],
    organization: Organization,
    during: JobTime | None = None,
) -> list[Nearby]:
    """Return those of these technicians who have another offer, and no other obstacle, at this moment.

    `ranked`: the distance and the drive of each in an earlier ranking. Locks nothing.
    """
    required, now = sorted(set(skill_ids)), clock.now()
    parameters = _parameters(organization, lat, lng, radius_m, required, now, during)
    rows = [_Row(*row) for row in _run(sql.BUSY, {"ids": prepared.integers(ranked), **parameters})]
    return _describe_rows(rows, organization, Position(lat, lng), radius_m, required, now, ranked, during)


def _find_one(
    statement: str,
    technician_id: int,
    organization: Organization,
    place: Position,
    radius_m: int,
    skill_ids: Iterable[int],
    ranked: tuple[int, int | None] | None,
    during: JobTime | None,
) -> Nearby | None:
    required, now = sorted(set(skill_ids)), clock.now()
    parameters = _parameters(organization, place.lat, place.lng, radius_m, required, now, during)
    results = _run(statement, {"technician_id": technician_id, **parameters})
    if not results:
        return None
    rows, known = [_Row(*results[0])], {technician_id: ranked} if ranked else {}
    return _describe_rows(rows, organization, place, radius_m, required, now, known, during)[0]


def load_road_times(
    organization: Organization,
    lat: float,
    lng: float,
    *,
    radius_m: int,
    skill_ids: Iterable[int],
    limit: int = 50,
    also: int | None = None,
    during: JobTime | None = None,
) -> None:
    """Ask the OSRM server, if there is one, for the drives that a ranking of these technicians needs.

    `also`: the id of a technician of the organization who is ranked in any case. Call it outside any transaction;
    it raises nothing that a search does not raise.
    """
    if not road_times.may_ask():
        return
    result = find_nearby(
        organization, lat, lng, radius_m=radius_m, skill_ids=skill_ids, limit=limit, during=during
    )
    nearby = result.considered
    positions = [Position(one.lat, one.lng) for one in nearby]
    if also is not None and all(one.technician_id != also for one in nearby):
        rows = Technician.objects.of(organization).filter(pk=also).values_list("lat", "lng")
        positions += [Position(*row) for row in rows]
    road_times.load(positions, Position(lat, lng))


def load_activities(organization: Organization, most: int) -> tuple[dict[str, int], list[TechnicianActivity]]:
    """Return the current states of the organization's active technicians.

    Return the number of technicians per state, and the first `most` by name of each state.
    """
    now = clock.now()
    second = rules.week_second(now.astimezone(ZoneInfo(organization.time_zone)))
    parameters = {
        "organization_id": organization.pk, "now": now, "week_second": second, "most": most, "job_begin": now,
        "job_end": now,
    }  # fmt: skip
    rows = _run(sql.ON_STRIP, parameters)
    return {row[5]: row[6] for row in rows}, [TechnicianActivity(*row[:6]) for row in rows]


def _parameters(
    organization: Organization,
    lat: float,
    lng: float,
    radius_m: int,
    skill_ids: list[int],
    now: datetime,
    during: JobTime | None,
) -> dict[str, Any]:
    second = rules.week_second(now.astimezone(ZoneInfo(organization.time_zone)))
    return {
        "lat": lat, "lng": lng, "radius_m": radius_m, "skill_ids": skill_ids, "now": now, "week_second": second,
        "job_begin": during.begin if during else now, "job_end": during.end if during else now,
    }  # fmt: skip


def _run(statement: str, parameters: dict[str, Any]) -> list[tuple[Any, ...]]:
    return prepared.fetch_all(statement, parameters)


def _describe_rows(
    rows: list[_Row],
    organization: Organization,
    place: Position,
    radius_m: int,
    required: list[int],
    now: datetime,
    ranked: Mapping[int, tuple[int, int | None]] = MappingProxyType({}),
    during: JobTime | None = None,
) -> list[Nearby]:
    here = now.astimezone(ZoneInfo(organization.time_zone))
    names: dict[int, str] = {}
    if any(row.code == rules.LACKS_SKILL for row in rows):
        names = dict(Skill.objects.filter(pk__in=required).values_list("pk", "name"))
    knows_drives = road_times.is_configured()
    drives = [_find_drive(row, place if knows_drives else None, ranked.get(row.id)) for row in rows]
    return [
        Nearby(
            technician_id=row.id,
            organization_id=row.organization_id,
            name=row.name,
            phone=row.phone,
            lat=row.lat,
            lng=row.lng,
            open_jobs=row.open_jobs,
            max_open_jobs=row.max_open_jobs,
            live_offer_id=row.live_offer_id,
            last_offered_at=row.last_offered_at,
            distance_m=round(row.distance_m),
            verdict=rules.verdict_of(row.code),
            code=row.code,
            reason=rules.reason_words(
                row.code,
                rules.Facts(
                    distance_m=round(row.distance_m),
                    unit=organization.distance_unit,
                    needs_skill=bool(required),
                    radius_m=radius_m,
                    own_radius_m=row.radius_m,
                    open_jobs=row.open_jobs,
                    max_open_jobs=row.max_open_jobs,
                    misses=row.misses,
                    missing=tuple(names[pk] for pk in required if pk in names and pk not in row.skill_ids),
                    hours=spans_of(row.hours),
                    local_now=now.astimezone(ZoneInfo(row.time_zone)) if row.time_zone else here,
                    travel_s=travel_s,
                    is_planned=during is not None and during.is_planned,
                ),
            ),
            skill_ids=tuple(row.skill_ids),
            travel_s=travel_s,
        )
        for row, travel_s in zip(rows, drives, strict=True)
    ]


def _find_drive(row: _Row, place: Position | None, ranked: tuple[int, int | None] | None) -> int | None:
    """Return the drive of a technician in seconds, if it is known or they were ranked where they are now."""
    known = road_times.known_s(Position(row.lat, row.lng), place) if place else None
    if known is None and ranked is not None and ranked[0] == round(row.distance_m):
        return ranked[1]
    return known
