"""Draw the map as SVG, without tiles, so that it works offline. It is labeled with the names of towns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, radians

from accounts.models import Organization
from dispatch.console.board.cards import state_of
from dispatch.console.board.filters import NO_FILTERS, Filters
from dispatch.console.board.map_data import MAX_DRAWN, describe_technician, load_map_data, position_age
from dispatch.jobs import policies
from dispatch.jobs.models import Job, Offer
from dispatch.technicians.map_outline import (
    HEIGHT,
    METERS_PER_DEGREE,
    WIDTH,
    Point,
    Sheet,
    grid_lines,
    scale_of,
    towns_on_map,
)
from dispatch.technicians.models import Technician


@dataclass(frozen=True)
class MapView:
    """The map in drawing units.

    `scale`: the scale bar (width in units, length in meters). `radius`: the search radius in units. `missing`:
    number of jobs without a position. `hidden`: number of technicians beyond the limit. `beyond`: number of points
    too far away to be drawn.
    """

    jobs: list[Point]
    technicians: list[Point]
    places: list[Point]
    lines: list[tuple[float, float, float, float]]
    scale: tuple[float, float]
    center: tuple[float, float] | None
    radius: float
    radius_m: int
    job: Job | None
    missing: int
    hidden: int
    beyond: int
    width: int = WIDTH
    height: int = HEIGHT


def build_map(organization: Organization, job: Job | None = None, filters: Filters = NO_FILTERS) -> MapView | None:
    """Build the map of one job with its candidates and radius, or of the open jobs and all technicians.

    Return None if nothing has a position.
    """
    data = load_map_data(organization, filters, job, MAX_DRAWN)
    placed, technicians = data.placed, data.technicians
    points = [(item.lat or 0.0, item.lng or 0.0) for item in placed] + [(row.lat, row.lng) for row in technicians]
    if not points:
        return None
    reach = policies.search_radius(job) if job is not None and placed else 0
    near = _within_radius(points, placed, reach) if reach else _without_outliers(points)
    sheet = Sheet(near, _reach_shown(near, placed, reach))
    center = sheet.at(*points[0]) if reach else None
    return MapView(
        jobs=[_job_point(sheet, item, data.live[item.pk]) for item in placed],
        technicians=_label_technicians(
            [_technician_point(sheet, row, data.ranks.get(row.pk, 0)) for row in technicians], jobs=bool(reach)
        ),
        places=towns_on_map(sheet),
        lines=grid_lines(sheet),
        scale=scale_of(sheet),
        center=center,
        radius=round(reach * sheet.units_per_m, 1),
        radius_m=reach,
        job=job,
        missing=data.missing,
        hidden=data.hidden,
        beyond=0 if reach else len(points) - len(near),
    )


def _without_outliers(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Leave out points that are far from most others, so that a wrong position does not shrink the rest."""
    lat, lng = (sorted(point[n] for point in points)[len(points) // 2] for n in (0, 1))
    away = [max(abs(a - lat), abs(b - lng) * cos(radians(lat))) for a, b in points]
    usual = sorted(away)[int(0.8 * (len(away) - 1))]
    return [point for point, far in zip(points, away, strict=True) if far <= max(0.5, 4 * usual)]


def _within_radius(
    points: list[tuple[float, float]], placed: list[Job], reach: float
) -> list[tuple[float, float]]:
    """Return the points within the radius, so that a point far away does not shrink the rest."""
    lat, lng = placed[0].lat or 0.0, placed[0].lng or 0.0
    stretch = cos(radians(lat))
    return [
        (a, b)
        for a, b in points
        if ((a - lat) ** 2 + ((b - lng) * stretch) ** 2) * METERS_PER_DEGREE**2 <= (1.1 * reach) ** 2
    ]


def _reach_shown(points: list[tuple[float, float]], placed: list[Job], reach: float) -> float:
    """Return the radius to show: the whole circle, or 0 if all points lie near its center."""
    if not reach:
        return 0.0
    lat, lng = placed[0].lat or 0.0, placed[0].lng or 0.0
    farthest = max(abs(a - lat) + abs(b - lng) * cos(radians(lat)) for a, b in points) * METERS_PER_DEGREE
    return reach if farthest > 0.7 * reach else 0.0


def _job_point(sheet: Sheet, job: Job, live: list[Offer]) -> Point:
    tone, words = state_of(job, live)
    x, y = sheet.at(job.lat or 0.0, job.lng or 0.0)
    return Point(x, y, tone, f"#{job.pk} {job.service_type.name}: {words}", f"#{job.pk}", job.pk)


def _technician_point(sheet: Sheet, technician: Technician, rank: int) -> Point:
    tone, state = describe_technician(technician)
    x, y = sheet.at(technician.lat, technician.lng)
    return Point(
        x, y, tone, f"{technician.name}, {state}", technician.name, age_s=position_age(technician), rank=rank
    )


def _label_technicians(points: list[Point], *, jobs: bool) -> list[Point]:
    """Label the technicians where there is space, best ranked first. The map of all jobs has no such labels."""
    taken: list[tuple[float, float]] = [(point.x, point.y) for point in points]
    labeled = []
    for point in sorted(points, key=lambda point: point.rank or 999):
        wide = 7 * min(len(point.label), 24)
        free = all(
            abs(y - point.y) > 12 or not point.x + 4 < x + 1 < point.x + wide + 20
            for x, y in taken
            if (x, y) != (point.x, point.y)
        )
        if jobs and free:
            taken += [(point.x + step, point.y) for step in range(14, wide + 14, 12)]
        labeled.append(point if jobs and free else replace(point, label=""))
    return labeled
