"""Enqueue runs for the workers of their kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from dispatch.core.runtime import queues
from dispatch.schedules import kinds

WORK = "dispatch.schedules.tasks.work"


class QueuedRun(NamedTuple):
    """A run for the workers of its kind."""

    id: int
    epoch: int
    kind: str
    organization_id: int


def enqueue_runs(runs: Iterable[QueuedRun], *, alone: bool = False) -> int:
    """Enqueue runs on each kind's queue, in chunks, after the commit; return the message count.

    Organizations take turns on a queue: the full chunks of one wait behind those that it has there. Smaller
    numbers of runs share messages. `alone` puts one run into each message, so that a run that crashes its worker
    affects no other run. No error is raised while Redis is unavailable: the reconciler sends the messages later.
    """
    by_kind: dict[str, dict[int, list[QueuedRun]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        by_kind[run.kind][run.organization_id].append(run)
    messages = 0
    for name, by_organization in by_kind.items():
        work = kinds.get_kind(name)
        size = 1 if alone else work.chunk_size()
        for organization_id, chunk in _chunks(by_organization, size):
            pairs = [[run.id, run.epoch] for run in chunk]
            queues.enqueue(work.queue, WORK, name, pairs, organization_id=organization_id)
            messages += 1
    return messages


def _chunks(
    by_organization: Mapping[int, list[QueuedRun]], size: int
) -> Iterator[tuple[int | None, list[QueuedRun]]]:
    """Yield the full chunks of each organization, then the others together, without an organization."""
    others: list[QueuedRun] = []
    for organization_id, runs in by_organization.items():
        full = len(runs) - len(runs) % size
        for first in range(0, full, size):
            yield organization_id, runs[first : first + size]
        others += runs[full:]
    owners = {run.organization_id for run in others}
    owner = owners.pop() if len(owners) == 1 else None
    for first in range(0, len(others), size):
        yield owner, others[first : first + size]
