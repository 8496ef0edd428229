"""Enqueue runs for the workers of their kinds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dispatch.core.runtime import queues
from dispatch.schedules import kinds

WORK = "dispatch.schedules.tasks.work"


def enqueue_runs(runs: Iterable[tuple[int, int, str]], *, alone: bool = False) -> int:
    """Enqueue (run id, epoch, kind) on each kind's queue, in chunks, after the commit; return the message count.

    `alone` puts one run into each message, so that a run that crashes its worker affects no other run. No error is
    raised while Redis is unavailable: the reconciler sends the messages later.
    """
    by_kind: dict[str, list[list[int]]] = defaultdict(list)
    for run_id, epoch, kind in runs:
        by_kind[kind].append([run_id, epoch])
    messages = 0
    for name, pairs in by_kind.items():
        work = kinds.get_kind(name)
        size = 1 if alone else work.chunk_size()
        for first in range(0, len(pairs), size):
            queues.enqueue(work.queue, WORK, name, pairs[first : first + size])
            messages += 1
    return messages
