"""Create the rows for the benchmark `jobs`.

Many organizations, each with technicians all over one metropolis and enough lines, so that neither is the limit.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from accounts.models import Organization
from dispatch.jobs.models import ServiceType
from dispatch.technicians.h3_cells import cell_of
from dispatch.technicians.models import Skill, Technician
from tests.benchmarks.noop_provider import NAME as NOOP
from tests.benchmarks.whole_provider import TOKEN
from tests.support import factories

ORGANIZATIONS = 20
TECHNICIANS = 500  # of each organization
LINES = 400  # of each organization, over two numbers
# Greater Phoenix, about 60 km each way.
SOUTH, NORTH, WEST, EAST = 33.18, 33.72, -112.40, -111.75
SERVICE = "ac-repair"


@dataclass(frozen=True)
class Tenant:
    """An organization, and the API key that its web site submits forms with."""

    organization_id: int
    api_key: str


def tenants(*, provider: str = NOOP, count: int = ORGANIZATIONS, technicians: int = TECHNICIANS) -> list[Tenant]:
    """Create organizations with a skill, a service type that requires it, technicians, an account and lines.

    Three of four technicians are eligible for the job.
    """
    return [_tenant(provider, technicians, random.Random(n)) for n in range(count)]


def form(chance: random.Random, n: int) -> dict[str, Any]:
    """What a customer sends: a street address with coordinates somewhere in the metropolis."""
    lat, lng = _spot(chance)
    return {
        "customer_name": "Dana Whitfield",
        "customer_phone": f"+1602{2_000_000 + n % 7_000_000:07d}",
        "service_type": SERVICE,
        "priority": "normal",
        "address": f"{100 + n} W Washington St, Phoenix, AZ 85003",
        "lat": lat,
        "lng": lng,
        "notes": "No cool air since this morning, two small children in the house.",
    }


def _tenant(provider: str, technicians: int, chance: random.Random) -> Tenant:
    made = factories.organization()
    skill = factories.skill(made, "cooling")
    service = ServiceType.objects.create(organization=made, code=SERVICE, name="AC repair")
    service.required_skills.set([skill])
    account = factories.account(made, provider=provider, auth_token=TOKEN, calls_per_second=1000.0)
    pool = factories.pool(made, concurrency=LINES)
    for _ in range(2):
        factories.number(made, account=account, pool=pool, max_channels=LINES // 2, reserved_for_alerts=10)
    _technicians(made, skill, technicians, chance)
    return Tenant(made.pk, factories.api_key(made))


def _technicians(made: Organization, skill: Skill, count: int, chance: random.Random) -> None:
    rows = []
    for n in range(count):
        lat, lng = _spot(chance)
        rows.append(
            Technician(
                organization=made,
                name=f"Technician {n}",
                phone=factories.phone(),
                lat=lat,
                lng=lng,
                cell=cell_of(lat, lng),
                skill_ids=[] if n % 4 == 3 else [skill.pk],
            )
        )
    Technician.objects.bulk_create(rows)
    through = Technician.skills.through
    through.objects.bulk_create(through(technician_id=row.pk, skill_id=skill.pk) for row in rows if row.skill_ids)


def _spot(chance: random.Random) -> tuple[float, float]:
    return round(chance.uniform(SOUTH, NORTH), 6), round(chance.uniform(WEST, EAST), 6)
