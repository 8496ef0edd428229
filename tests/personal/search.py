"""Search every text and JSON column of every table of the database."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import connection

# A person asked to be on these lists, so erasing keeps them.
KEPT_ON_LISTS = {"telephony_optout.phone", "leads_donotcall.phone"}

_COLUMNS = """
SELECT c.table_name, c.column_name FROM information_schema.columns c
JOIN information_schema.tables t USING (table_schema, table_name)
WHERE c.table_schema = current_schema() AND t.table_type = 'BASE TABLE'
  AND c.data_type IN ('text', 'character varying', 'character', 'json', 'jsonb', 'ARRAY')
ORDER BY 1, 2
"""


def places_of(words: Iterable[str]) -> set[str]:
    """Return every "table.column" that contains one of the words, regardless of case."""
    quote = connection.ops.quote_name
    patterns = [f"%{word}%" for word in words]
    with connection.cursor() as cursor:
        cursor.execute(_COLUMNS)
        columns = cursor.fetchall()
        searches = [
            f"SELECT '{table}.{column}' WHERE EXISTS"
            f" (SELECT FROM {quote(table)} WHERE {quote(column)}::text ILIKE ANY(%(patterns)s))"
            for table, column in columns
        ]
        cursor.execute(" UNION ALL ".join(searches), {"patterns": patterns})
        return {place for (place,) in cursor.fetchall()}
