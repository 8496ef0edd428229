"""Let organizations take turns among due rows, so that a burst of one delays no other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from itertools import zip_longest
from typing import Protocol, TypeVar


class Due(Protocol):
    """A due row of an organization, and since when it is due."""

    @property
    def organization_id(self) -> int: ...

    @property
    def since(self) -> datetime: ...


D = TypeVar("D", bound=Due)


def order_by_turns(rows: Iterable[D]) -> list[D]:
    """Return the oldest row of each organization, then the second of each, and so on."""
    by_organization: dict[int, list[D]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.since):
        by_organization[row.organization_id].append(row)
    return [row for turn in zip_longest(*by_organization.values()) for row in turn if row is not None]
