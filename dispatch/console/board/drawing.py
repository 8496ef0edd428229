"""The map, drawn here: no tiles, so it works without internet. Places of the country's ZIP codes give it names."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import cos, radians

from accounts.models import Organization
from dispatch.console.board.cards import state_of
from dispatch.core import clock
from dispatch.jobs import policies
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.technicians.base_map import HEIGHT, METRES_PER_DEGREE, WIDTH, Point, Sheet, grid, places, scale_of
from dispatch.technicians.models import Technician

MOST = 300


@dataclass(frozen=True)
class Drawing:
    """`scale` of the bar (width in units, metres); `radius` of the job's search in units; `missing` jobs have no
    position, `beyond` lie too far away to be drawn."""

    jobs: list[Point]
    technicians: list[Point]
    places: list[Point]
    lines: list[tuple[float, float, float, float]]
    scale: tuple[float, float]
    centre: tuple[float, float] | None
    radius: float
    radius_m: int
    job: Job | None
    missing: int
    hidden: int
    beyond: int
    width: int = WIDTH
    height: int = HEIGHT


def drawing_of(organization: Organization, job: Job | None = None) -> Drawing | None:
    """The map of one job with its candidates and its radius, or of all open jobs and technicians; None when
    nothing has a position."""
    jobs = [job] if job is not None else _open_jobs(organization)
    placed = [one for one in jobs if one.lat is not None and one.lng is not None]
    ranks = dict(Candidate.objects.filter(job=job).values_list("technician_id", "rank")) if job else {}
    crew = Technician.objects.of(organization).filter(is_active=True)
    if job is not None:
        crew = crew.filter(pk__in=[*ranks, *filter(None, [job.technician_id])])
    technicians = list(crew.order_by("-on_duty", "name")[:MOST])
    points = [(one.lat or 0.0, one.lng or 0.0) for one in placed] + [(one.lat, one.lng) for one in technicians]
    if not points:
        return None
    reach = policies.frozen(job).radius_m if job is not None and placed else 0
    near = _within(points, placed, reach) if reach else _together(points)
    sheet = Sheet(near, _reach_shown(near, placed, reach))
    centre = sheet.at(*points[0]) if reach else None
    live = _live(placed)
    return Drawing(
        jobs=[_job(sheet, one, live.get(one.pk)) for one in placed],
        technicians=_named(
            [_technician(sheet, one, ranks.get(one.pk, 0)) for one in technicians], jobs=bool(reach)
        ),
        places=places(sheet),
        lines=grid(sheet),
        scale=scale_of(sheet),
        centre=centre,
        radius=round(reach * sheet.units_per_m, 1),
        radius_m=reach,
        job=job,
        missing=len(jobs) - len(placed),
        hidden=max(0, crew.count() - len(technicians)),
        beyond=0 if reach else len(points) - len(near),
    )


def _open_jobs(organization: Organization) -> list[Job]:
    rows = Job.objects.of(organization).select_related("service_type")
    open_ones = rows.filter(status__in=[Job.Status.DISPATCHING, Job.Status.PENDING, Job.Status.ASSIGNED])
    return list(open_ones.order_by("priority", "-id")[:MOST])


def _live(jobs: list[Job]) -> dict[int, Offer]:
    pending = Offer.objects.filter(job__in=[one.pk for one in jobs], status=Offer.Status.PENDING)
    return {offer.job_id: offer for offer in pending}


def _together(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Without the few that lie far from all others: one wrong position must not make the rest a dot."""
    lat, lng = (sorted(one[n] for one in points)[len(points) // 2] for n in (0, 1))
    away = [max(abs(a - lat), abs(b - lng) * cos(radians(lat))) for a, b in points]
    usual = sorted(away)[int(0.8 * (len(away) - 1))]
    return [one for one, far in zip(points, away, strict=True) if far <= max(0.5, 4 * usual)]


def _within(points: list[tuple[float, float]], placed: list[Job], reach: float) -> list[tuple[float, float]]:
    """Those that lie within the radius: one who is far away must not make the rest small."""
    lat, lng = placed[0].lat or 0.0, placed[0].lng or 0.0
    stretch = cos(radians(lat))
    return [
        (a, b)
        for a, b in points
        if ((a - lat) ** 2 + ((b - lng) * stretch) ** 2) * METRES_PER_DEGREE**2 <= (1.1 * reach) ** 2
    ]


def _reach_shown(points: list[tuple[float, float]], placed: list[Job], reach: float) -> float:
    """The whole circle is shown when it is not much larger than what lies in it."""
    if not reach:
        return 0.0
    lat, lng = placed[0].lat or 0.0, placed[0].lng or 0.0
    farthest = max(abs(a - lat) + abs(b - lng) * cos(radians(lat)) for a, b in points) * METRES_PER_DEGREE
    return reach if farthest > 0.7 * reach else 0.0


def _job(sheet: Sheet, job: Job, live: Offer | None) -> Point:
    tone, words = state_of(job, live)
    x, y = sheet.at(job.lat or 0.0, job.lng or 0.0)
    return Point(x, y, tone, f"#{job.pk} {job.service_type.name}: {words}", f"#{job.pk}", job.pk)


def _technician(sheet: Sheet, one: Technician, rank: int) -> Point:
    if one.live_offer_id:
        tone, state = "calling", "on offer"
    elif not one.on_duty:
        tone, state = "off", "off duty"
    elif one.auto_paused_at:
        tone, state = "late", "auto-paused"
    elif one.open_jobs:
        tone, state = "plain", f"{one.open_jobs} open job{'' if one.open_jobs == 1 else 's'}"
    else:
        tone, state = "good", "available"
    x, y = sheet.at(one.lat, one.lng)
    age = int((clock.now() - one.position_at).total_seconds())
    return Point(x, y, tone, f"{one.name}, {state}", one.name, age_s=max(0, age), rank=rank)


def _named(crew: list[Point], *, jobs: bool) -> list[Point]:
    """Their names beside them where there is room, the best ranked first; on the map of everything none."""
    taken: list[tuple[float, float]] = [(one.x, one.y) for one in crew]
    found = []
    for one in sorted(crew, key=lambda point: point.rank or 999):
        wide = 7 * min(len(one.label), 24)
        free = all(
            abs(y - one.y) > 12 or not one.x + 4 < x + 1 < one.x + wide + 20
            for x, y in taken
            if (x, y) != (one.x, one.y)
        )
        if jobs and free:
            taken += [(one.x + step, one.y) for step in range(14, wide + 14, 12)]
        found.append(one if jobs and free else replace(one, label=""))
    return found
