"""The metrics of leads and lines."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Histogram

from dispatch.core.redis import generation
from dispatch.leads import metrics
from dispatch.leads.counters import observe_many
from tests.conftest import forget_redis
from tests.core.outages import redis_away
from tests.harness.leads import Floor


@pytest.mark.django_db(transaction=True)
def test_line_metrics_cover_postgres_and_redis(floor: Floor) -> None:

    def told() -> dict[str, float]:
        return {what: value for (number, what), value in metrics.lines() if number == str(floor.number.pk)}

    floor.add_many(2)
    floor.promote()
    claimed = floor.claim()
    assert told() == {"there": 5, "used": 2, "free": 3, "leased": 2}
    forget_redis()
    assert told() == {"there": 5, "used": 2, "free": 3, "leased": 0}
    with redis_away():
        assert told() == {"there": 5, "used": 2, "free": 3}
    generation.ensure_generation()
    floor.settle(floor.ask(claimed))
    assert told()["used"] == 0


def test_a_batch_is_counted_as_its_leads_would_be() -> None:
    registry = CollectorRegistry()
    one, many = (Histogram(name, "", buckets=(0.1, 1, 5), registry=registry) for name in ("one", "many"))
    values = [0.05, 0.1, 0.2, 3.0, 99.0]
    for value in values:
        one.observe(value)
    observe_many(many, values)
    found = {sample.name + str(sample.labels): sample.value for f in registry.collect() for sample in f.samples}
    for name, value in found.items():
        if name.startswith("one") and "created" not in name:
            assert found["many" + name.removeprefix("one")] == pytest.approx(value)
