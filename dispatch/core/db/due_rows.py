"""Find a batch of due rows in which organizations take turns, at a cost that does not grow with the due rows.

A window over all due rows would sort them for each batch, hundreds of times for 100,000 rows of one organization.
A table with an index (organization, due time) of its waiting rows is read in two steps instead: each organization
is looked up after the one before, then the first rows of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import transaction

from dispatch.core.db import prepared
from dispatch.core.db.isolation import CANDIDATES

# Organizations with due rows, by the time of their first one. Only an index (organization, due time) has this
# order, and can look up both columns of these comparisons.
_ORGANIZATIONS = """
WITH RECURSIVE owner AS (
    (SELECT organization_id AS id, {due} AS since FROM {table}
     WHERE {condition} AND (organization_id, {due}) > (0, '-infinity'::timestamptz)
     ORDER BY organization_id, {due} LIMIT 1)
    UNION ALL
    SELECT next.id, next.since FROM owner CROSS JOIN LATERAL (
        SELECT organization_id AS id, {due} AS since FROM {table}
        WHERE {condition} AND (organization_id, {due}) > (owner.id, 'infinity'::timestamptz)
        ORDER BY organization_id, {due} LIMIT 1
    ) next
)
SELECT id FROM owner WHERE since <= %(until)s ORDER BY since, id LIMIT %(limit)s
"""
# The first due rows of each of these organizations.
_FIRST_ROWS = """
SELECT owner.id, r.id, r.since FROM unnest(%(organizations)s::bigint[]) AS owner(id) CROSS JOIN LATERAL (
    SELECT id, {due} AS since FROM {table}
    WHERE {condition} AND (organization_id, {due}) > (owner.id, COALESCE(%(since)s::timestamptz, '-infinity'))
      AND (organization_id, {due}) <= (owner.id, %(until)s)
    ORDER BY organization_id, {due} LIMIT %(share)s
) r
ORDER BY owner.id, r.since, r.id
"""
# Rows are read in the order of the index up to a LIMIT. Other plans would read all due rows, then sort them.
_IN_ORDER = """
SELECT set_config('plan_cache_mode', 'force_generic_plan', true), set_config('enable_seqscan', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_sort', 'off', true),
       set_config('enable_incremental_sort', 'off', true)
"""
# The first row of each organization of `owners`. Those of others are not read.
_FIRST_OF_OWNERS = """
SELECT o.id, r.since FROM ({owners}) o CROSS JOIN LATERAL (
    SELECT {due} AS since FROM {table}
    WHERE {condition} AND organization_id = o.id AND {due} IS NOT NULL ORDER BY {due} LIMIT 1
) r
"""
_OWNERS = f"""
SELECT id FROM ({_FIRST_OF_OWNERS}) first WHERE since <= %(until)s ORDER BY since, id LIMIT %(limit)s
"""
# Lock those of these rows that are still due. CASE hides the conditions from the planner, which could find all due
# rows by them instead of these by their id.
_LOCK = """
SELECT {columns} FROM {table}
WHERE id = ANY(%(ids)s::bigint[]) AND CASE WHEN {condition} THEN {due} <= %(until)s END
ORDER BY array_position(%(ids)s::bigint[], id)
LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""
_LOCK_OTHERS = """
SELECT {columns} FROM {table}
WHERE {condition} AND {due} <= %(until)s AND NOT id = ANY(%(ids)s::bigint[]){of_owners}
ORDER BY {due} LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
"""

Parameters = Mapping[str, Any]
NO_PARAMETERS: Parameters = {}


@dataclass(frozen=True)
class DueIndex:
    """An index (organization_id, `due`) of the rows of a table that meet an SQL condition and wait for `due`.

    `owners` is a query of the ids of organizations, if the rows of others wait however long they have been due.
    """

    table: str
    due: str
    condition: str
    owners: str = ""

    def is_any_due(self, moment: str) -> str:
        """Return the SQL condition that a row is due at this moment, an SQL expression.

        With `owners`, run it with `prepared.fetch_in_order`, as `due_checks` does.
        """
        if self.owners:
            return self._format(f"EXISTS (SELECT FROM ({_FIRST_OF_OWNERS}) first WHERE since <= {moment})")
        return self._format(f"EXISTS (SELECT FROM {{table}} WHERE {{condition}} AND {{due}} <= {moment})")

    def next_due(self) -> str:
        """Return the SQL expression for when the first row of the owners is due.

        Run it with `prepared.fetch_in_order`.
        """
        return self._format(f"(SELECT min(since) FROM ({_FIRST_OF_OWNERS}) first)")

    def unlocked_rows(self, until: datetime, limit: int, *columns: str) -> list[tuple[Any, ...]]:
        """Return these columns of up to `limit` due rows that no other session has locked now.

        Organizations take turns, as in `isolation.unlocked_rows`. The condition must have no parameters.
        """
        fetch = prepared.fetch_in_order if self.owners else prepared.fetch_by_index
        ((is_any_due,),) = fetch(f"SELECT {self.is_any_due('%(until)s')}", {"until": until})
        if not is_any_due:
            return []
        with self.reading_in_order():
            prepared.defer_fsync()
            wanted = CANDIDATES * limit
            ids = self.find_first_ids(self.find_organizations(until, wanted), until, wanted)
            found = self._fetch(_LOCK, columns, ids=ids, until=until, limit=limit)
            if len(found) < limit and len(ids) == wanted:  # most of them are locked
                found += self._fetch(_LOCK_OTHERS, columns, ids=ids, until=until, limit=limit - len(found))
            return found

    @contextmanager
    def reading_in_order(self) -> Iterator[None]:
        """Open a transaction in which rows are read in the order of the index, whatever the statistics are."""
        with transaction.atomic():
            prepared.execute(_IN_ORDER)
            yield

    def find_organizations(
        self, until: datetime, limit: int | None, given: Parameters = NO_PARAMETERS
    ) -> list[int]:
        """Return up to `limit` organizations with due rows, or all; first the one whose row has been due longest.

        `given` are the parameters of the condition. Call it while `reading_in_order`.
        """
        statement = _OWNERS if self.owners else _ORGANIZATIONS
        return [pk for (pk,) in self._fetch(statement, until=until, limit=limit, **given)]

    def find_first_ids(
        self,
        organizations: Sequence[int],
        until: datetime,
        limit: int,
        given: Parameters = NO_PARAMETERS,
        since: datetime | None = None,
    ) -> list[int]:
        """Return up to `limit` rows that became due by `until`, after `since`: the first of each, then the second.

        The cost grows with the limit and the number of organizations. Call it while `reading_in_order`.
        """
        if not organizations:
            return []
        share = -(-limit // len(organizations))
        while True:
            rows = self._fetch(
                _FIRST_ROWS, organizations=list(organizations), until=until, since=since, share=share, **given
            )
            counts = dict.fromkeys(organizations, 0)
            turns = []
            for organization_id, pk, due in rows:
                turns.append((counts[organization_id], due, pk))
                counts[organization_id] += 1
            with_more = sum(count == share for count in counts.values())
            missing = limit - len(turns)
            if missing <= 0 or not with_more or share >= limit:
                return [pk for _, _, pk in sorted(turns)[:limit]]
            share = min(max(2 * share, share - (-missing // with_more)), limit)

    def _fetch(self, statement: str, columns: Sequence[str] = (), **given: Any) -> list[tuple[Any, ...]]:
        return prepared.fetch_all(self._format(statement, columns), given)

    def _format(self, statement: str, columns: Sequence[str] = ()) -> str:
        of_owners = f" AND organization_id IN ({self.owners})" if self.owners else ""
        return statement.format(
            table=self.table, due=self.due, condition=self.condition, columns=", ".join(columns),
            owners=self.owners, of_owners=of_owners,
        )  # fmt: skip
