"""Read the demo's file of forms: the request and the expected outcome of each line."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("submissions.jsonl")
REQUIRED = {"ref", "expect"}
_EXPECT = re.compile(r"job|repeat|pending(:\w+)?|late:(call_back|text)|rejected:\d{3}")


@dataclass(frozen=True)
class Line:
    """Describe one request.

    `expect`: `job` (assigned, or sent to dispatchers), `pending:<reason>`, `late:call_back` or `late:text`
    (assigned by an answer on that channel after the offer expired), `rejected:<status>` or `repeat` (the answer to
    an earlier request with the same idempotency key). `raw`: sent unchanged instead of `body`. `key`: the API key,
    "" for the demo's, or `wrong`, `read` or `none`. `follows`: the idempotency key whose first answer is awaited
    before this line is sent.
    """

    ref: str
    expect: str
    why: str = ""
    body: Any = None
    raw: str | None = None
    content_type: str = "application/json"
    key: str = ""
    idempotency_key: str = ""
    follows: str = ""

    @property
    def payload(self) -> bytes:
        return (self.raw if self.raw is not None else json.dumps(self.body, ensure_ascii=False)).encode()

    @property
    def late_by(self) -> str:
        """Return the channel of the late answer to this line's offer: `call_back`, `text` or ""."""
        kind, _, channel = self.expect.partition(":")
        return channel if kind == "late" else ""

    @property
    def label(self) -> str:
        """Return service and town, or the reason that the line is unusual."""
        if self.why or not isinstance(self.body, dict):
            return self.why or self.ref
        service = str(self.body.get("service_type", "")).replace("-", " ")
        return f"{service}, {_town(str(self.body.get('address', '')))}"


def load(path: Path = FILE) -> list[Line]:
    """Return the lines of a file of forms. Raise ValueError naming an invalid line, OSError without the file."""
    lines = []
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not a UTF-8 text file.") from None
    for number, text in enumerate(texts, 1):
        try:
            lines.append(_line(json.loads(text)))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    if not lines:
        raise ValueError(f"{path.name} contains no forms.")
    return lines


def _line(given: Any) -> Line:
    """Parse one line. Raise ValueError naming the error."""
    if not isinstance(given, dict):
        raise ValueError("not a JSON object")
    if unknown := given.keys() - {field.name for field in fields(Line)}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    if missing := REQUIRED - given.keys():
        raise ValueError(f"missing: {', '.join(sorted(missing))}")
    if not _EXPECT.fullmatch(str(given["expect"])):
        raise ValueError(
            f"expect is {given['expect']!r}, which is not one of job, repeat, pending:reason, late:channel, "
            "rejected:status"
        )
    return Line(**given)


def _town(address: str) -> str:
    """Return the part before the ZIP code's: "200 W Washington St, Phoenix, AZ 85003" → Phoenix."""
    parts = [part.strip() for part in address.removesuffix(", USA").split(",") if part.strip()]
    if len(parts) > 2:
        return parts[-2]
    return parts[-1] if parts else "by map"
