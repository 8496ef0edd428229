"""Load what the map shows: open jobs, technicians, and who is called for which job."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from accounts.models import Organization
from dispatch.console.board.cards import state_of, with_action_data
from dispatch.console.board.filters import Filters
from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.core.languages import ngettext
from dispatch.jobs import policies
from dispatch.jobs.action_forms import allowed_actions
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.rules import Action
from dispatch.technicians.map_outline import STALE_POSITION_S
from dispatch.technicians.models import Technician

# Most jobs and technicians of the map with tiles, which groups near ones, and of the outline.
MAX_GROUPED, MAX_DRAWN = 2000, 300
_TONES = {
    Offer.Status.PENDING: "calling",
    Offer.Status.ACCEPTED: "good",
    Offer.Status.DECLINED: "late",
}


@dataclass(frozen=True)
class MapData:
    """The rows of a map. `job` and `ranks` (technician id → rank) are set for the map of one job.

    `live`: job id → its pending offers. `total_technicians`: with those beyond the limit.
    """

    job: Job | None
    jobs: list[Job]
    technicians: list[Technician]
    ranks: dict[int, int]
    live: dict[int, list[Offer]]
    total_technicians: int

    @property
    def placed(self) -> list[Job]:
        """Return the jobs that have a position."""
        return [item for item in self.jobs if item.lat is not None and item.lng is not None]

    @property
    def missing(self) -> int:
        return len(self.jobs) - len(self.placed)

    @property
    def hidden(self) -> int:
        return max(0, self.total_technicians - len(self.technicians))


def load_map_data(organization: Organization, filters: Filters, job: Job | None, most: int) -> MapData:
    """Load the open jobs that match the filters with all technicians, or one job with its candidates."""
    jobs = [job] if job is not None else _open_jobs(organization, filters, most)
    ranks = dict(Candidate.objects.filter(job=job).values_list("technician_id", "rank")) if job else {}
    active = Technician.objects.of(organization).filter(is_active=True)
    if job is not None:
        active = active.filter(pk__in=[*ranks, *filter(None, [job.technician_id])])
    technicians = list(active.order_by("-on_duty", "name")[:most])
    live: dict[int, list[Offer]] = defaultdict(list)
    for offer in Offer.objects.filter(job__in=[item.pk for item in jobs], status=Offer.Status.PENDING):
        live[offer.job_id].append(offer)
    total = active.count() if len(technicians) == most else len(technicians)
    return MapData(job, jobs, technicians, ranks, live, total)


def tile_origin(address: str) -> str:
    """Return the source of a tile address for the content policy. Subdomains (`{s}`) become a wildcard."""
    parts = urlsplit(address)
    return f"{parts.scheme}://{parts.netloc.replace('{s}', '*')}"


def describe_technician(technician: Technician) -> tuple[str, str]:
    """Return the tone and the state of a technician in words."""
    if technician.live_offer_id:
        return "calling", _("being called")
    if not technician.on_duty:
        return "off", _("off duty")
    if technician.auto_paused_at:
        return "late", _("auto-paused")
    later = technician.open_jobs_later
    words = ngettext("{count} job later", "{count} jobs later", later).format(count=later) if later else ""
    if (open_now := technician.open_jobs - later) > 0:
        now = ngettext("{count} open job", "{count} open jobs", open_now).format(count=open_now)
        return "plain", f"{now}, {words}" if words else now
    return "good", f"{_('available')}, {words}" if words else _("available")


def position_age(technician: Technician) -> int:
    """Return the age of the technician's position in seconds."""
    return max(0, int((clock.now() - technician.position_at).total_seconds()))


def build_points(data: MapData) -> dict[str, Any]:
    """Return the map as JSON: `jobs`, `technicians`, `calls` from a job to a technician, and the search `radius`.

    Positions are in degrees, the radius is in meters, ages are in seconds.
    """
    jobs = []
    for job in data.placed:
        tone, words = state_of(job, data.live[job.pk])
        can_assign = Action.ASSIGN in allowed_actions(job, ringing=bool(data.live[job.pk]))
        jobs.append(
            {
                "id": job.pk,
                "at": [job.lat, job.lng],
                "tone": tone,
                "words": f"#{job.pk} {job.service_type.name}: {words}",
                "can_assign": can_assign,
            }
        )
    technicians = []
    for row in data.technicians:
        tone, state = describe_technician(row)
        age = position_age(row)
        technicians.append(
            {
                "id": row.pk,
                "at": [row.lat, row.lng],
                "tone": tone,
                "name": row.name,
                "words": f"{row.name}, {state}",
                "age_s": age,
                "is_old": age > STALE_POSITION_S,
                "rank": data.ranks.get(row.pk, 0),
            }
        )
    center = data.placed[0] if data.job is not None and data.placed else None
    return {
        "job": data.job.pk if data.job is not None else None,
        "jobs": jobs,
        "technicians": technicians,
        "calls": _calls(data),
        "radius": {"at": [center.lat, center.lng], "meters": policies.search_radius(center)} if center else None,
        "missing": data.missing,
        "hidden": data.hidden,
    }


def _calls(data: MapData) -> list[dict[str, Any]]:
    """Return the calls that ring now, and for the map of one job also how its earlier ones ended."""
    rows = [offer for offers in data.live.values() for offer in offers]
    if data.job is not None:
        newest: dict[int, Offer] = {}
        for offer in data.job.offers.order_by("attempt"):
            newest[offer.technician_id] = offer
        rows = list(newest.values())
    return [
        {
            "job": offer.job_id,
            "technician": offer.technician_id,
            "tone": _TONES.get(Offer.Status(offer.status), "off"),
            "words": _("ringing") if offer.is_ringing else offer.get_status_display().lower(),
            "is_live": offer.status == Offer.Status.PENDING,
        }
        for offer in rows
    ]


def _open_jobs(organization: Organization, filters: Filters, most: int) -> list[Job]:
    rows = with_action_data(organization)
    open_jobs = rows.filter(status__in=[Job.Status.DISPATCHING, Job.Status.PENDING, Job.Status.ASSIGNED])
    return list(filters.apply(open_jobs).order_by("priority", "-id")[:most])
