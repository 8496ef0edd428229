"""Messages to the workers: one RQ queue of each kind, each message a list of [run id, epoch]."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from dispatch.core import queues
from dispatch.schedules import kinds

WORK = "dispatch.schedules.tasks.work"


def send(runs: Iterable[tuple[int, int, str]]) -> int:
    """After commit, puts (run id, epoch, kind) on the queue of each kind, in chunks; how many messages.

    A Redis that is gone is no error: the reconciler sends again what left no trace."""
    of_kind: dict[str, list[list[int]]] = defaultdict(list)
    for run_id, epoch, kind in runs:
        of_kind[kind].append([run_id, epoch])
    messages = 0
    for name, pairs in of_kind.items():
        work = kinds.get(name)
        for first in range(0, len(pairs), work.chunk_size()):
            queues.enqueue(work.queue, WORK, name, pairs[first : first + work.chunk_size()])
            messages += 1
    return messages
