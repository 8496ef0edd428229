"""Update the catalog of Dispatch's events: `python -m tests.event_types observed.json`.

The input is what `tests.support.event_recorder` recorded. Types are only added, since a part of the tests causes
only a part of the events; a kind that is not in the catalog is listed, and needs a description there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "dispatch" / "outbox" / "event_types.json"
# Fields of the payload itself.
RESERVED = {"event_id", "subject", "actor"}


def update(catalog: dict[str, Any], observed: dict[str, Any]) -> list[str]:
    """Add what was observed to the catalog; return the kinds that it does not have."""
    for kind, seen in observed.items():
        if (entry := catalog.get(kind)) is None:
            continue
        entry["actors"] = sorted({*entry["actors"], *seen["actors"]})
        for name, types in seen["fields"].items():
            if name not in RESERVED:
                entry["fields"][name] = _simplify({*entry["fields"].get(name, []), *types})
        entry["fields"] = dict(sorted(entry["fields"].items()))
    return sorted(set(observed) - set(catalog))


def _simplify(types: set[str]) -> list[str]:
    return sorted(types - {"integer"} if "number" in types else types)


def write(catalog: dict[str, Any]) -> None:
    """Write the catalog, one line for each kind."""
    lines = [f"{json.dumps(kind)}: {json.dumps(entry)}" for kind, entry in sorted(catalog.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    found = json.loads(FILE.read_text())
    unknown = update(found, json.loads(Path(sys.argv[1]).read_text()))
    write(found)
    print(f"{len(found)} types. Not in the catalog: {', '.join(unknown) or 'none'}.")  # noqa: T201
