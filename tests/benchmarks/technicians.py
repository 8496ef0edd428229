"""Who is near, among 100,000 technicians of one metropolis with shifts, skills, radii, duty and workload.

80,000 belong to 200 organizations, 20,000 to one. "In the database" is planning and execution as PostgreSQL's
EXPLAIN ANALYZE tells them; "the whole call" adds the driver, Python and the reasons in words.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import time, timedelta
from typing import Any

from django.db import connection

from accounts.models import Organization
from dispatch.core import clock
from dispatch.technicians import rules, search, services
from dispatch.technicians.h3_cells import cell_of
from dispatch.technicians.models import Skill, Technician
from tests.benchmarks import Result
from tests.benchmarks.measuring import percentile, timings_ms
from tests.support import factories as make

SMALL_ONES, OF_SMALL_ONES, OF_THE_BIG_ONE = 200, 80_000, 20_000
CENTRE = (33.45, -112.05)
RADIUS_M = 50_000

_POINT = """
    SELECT id FROM technicians_technician
    WHERE organization_id = %(organization_id)s AND is_active
    ORDER BY point(lng, lat) <-> point(%(lng)s, %(lat)s) LIMIT 50
"""


def run() -> Iterator[Result]:
    chance = random.Random(5)
    small, big = people(chance)

    def among_many() -> Organization:
        return chance.choice(small)

    yield from near("one of 200 organizations, 400 technicians", among_many, 400, chance, ("<= 5", ""))
    yield from near("an organization of 20,000", lambda: big, 60, chance, ("", ""))
    yield from _fitness(among_many, chance)
    with connection.cursor() as cursor:
        cursor.execute("CREATE INDEX bench_point ON technicians_technician USING gist (point(lng, lat))")
        cursor.execute("ANALYZE technicians_technician")
    taken = sorted(_explained(_POINT, {**_spot(chance), "organization_id": among_many().pk}) for _ in range(60))
    peer = "GiST on point, distance only, no conditions"
    yield Result("50 nearest of an organization, p99 in the database", percentile(taken, 0.99), "ms", peer=peer)


def near(
    who: str, organization: Callable[[], Organization], times: int, chance: random.Random, targets: tuple[str, str]
) -> Iterator[Result]:
    skills = {pk: [first] for first, pk in Skill.objects.filter(code="gas").values_list("pk", "organization_id")}

    def look() -> None:
        of = organization()
        services.find_nearby(of, **_spot(chance), radius_m=RADIUS_M, skill_ids=skills[of.pk])

    whole = timings_ms(look, times)
    statements: list[tuple[str, dict[str, Any]]] = []
    keep = search._run
    search._run = lambda statement, given: statements.append((statement, given)) or keep(statement, given)  # type: ignore[func-returns-value]
    try:
        for _ in range(times):
            look()
    finally:
        search._run = keep
    taken = sorted(_explained(*one) for one in statements)
    yield Result(f"near, {who}: p50 in the database", percentile(taken, 0.5), "ms")
    yield Result(f"near, {who}: p99 in the database", percentile(taken, 0.99), "ms", targets[0])
    yield Result(f"near, {who}: p99 of the whole call", percentile(whole, 0.99), "ms", targets[1])


def _fitness(organization: Callable[[], Organization], chance: random.Random) -> Iterator[Result]:
    ids = list(Technician.objects.of(organization()).values_list("pk", flat=True)[:100])

    def look() -> None:
        services.check_fitness(chance.choice(ids), **_spot(chance), radius_m=RADIUS_M, skill_ids=[])

    yield Result("fitness of one technician, p99 of the whole call", percentile(timings_ms(look, 300), 0.99), "ms")


def _spot(chance: random.Random) -> dict[str, float]:
    return {"lat": CENTRE[0] + chance.gauss(0, 0.15), "lng": CENTRE[1] + chance.gauss(0, 0.2)}


def _explained(statement: str, given: dict[str, Any]) -> float:
    with connection.cursor() as cursor:
        cursor.execute("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) " + statement, given)
        told = cursor.fetchone()[0]
    (plan,) = json.loads(told) if isinstance(told, str) else told
    return plan["Planning Time"] + plan["Execution Time"]


def people(chance: random.Random) -> tuple[list[Organization], Organization]:
    organizations = [make.organization() for _ in range(SMALL_ONES + 1)]
    *small, big = organizations
    skills = {of.pk: [make.skill(of, code).pk for code in ("gas", "hvac", "electrical")] for of in organizations}
    hours = [
        None,
        rules.week_spans([(day, time(7), time(17)) for day in range(5)]),
        rules.week_spans([(day, time(18), time(6)) for day in range(7)]),
        rules.week_spans([(day, time(0), time(0)) for day in range(7)]),
    ]
    tomorrow = clock.now() + timedelta(days=1)
    owners = [small[n % SMALL_ONES] for n in range(OF_SMALL_ONES)] + [big] * OF_THE_BIG_ONE
    chance.shuffle(owners)  # as rows come in over the years: the neighbours of a page are strangers

    def one(n: int, of: Organization) -> Technician:
        lat, lng = CENTRE[0] + chance.gauss(0, 0.18), CENTRE[1] + chance.gauss(0, 0.22)
        return Technician(
            organization=of,
            name=f"Technician {n}",
            phone=f"+1602{n:07d}",
            lat=lat,
            lng=lng,
            cell=cell_of(lat, lng),
            skill_ids=[pk for pk in skills[of.pk] if chance.random() < 0.6],
            hours=chance.choice(hours),
            on_duty=chance.random() < 0.85,
            open_jobs=chance.choice([0, 0, 1]),
            max_open_jobs=chance.choice([1, 2]),
            live_offer_id=chance.choice([None] * 9 + [n]),
            radius_m=chance.choice([None, None, 15_000, 30_000]),
            time_zone=chance.choice(["", "", "America/Denver"]),
            planned_times=chance.choice([None, None, [(tomorrow, tomorrow + timedelta(hours=3))]]),
        )

    Technician.objects.bulk_create((one(n, of) for n, of in enumerate(owners, 1)), batch_size=5000)
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE technicians_technician")
    return small, big
