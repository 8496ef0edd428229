"""The shipped file of forms, line by line: what is sent, and how it must end."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("submissions.jsonl")
NEEDED = {"ref", "expect"}
_EXPECT = re.compile(r"job|repeat|pending(:\w+)?|rejected:\d{3}")


@dataclass(frozen=True)
class Line:
    """One request. `expect` is `job` (assigned, or sent to dispatchers), `pending:<reason>`, `rejected:<status>`
    or `repeat` (the answer to an earlier request with the same idempotency key). `raw` is sent as it is instead of
    `body`; `key` chooses the API key: "" the demo's, `wrong`, `read` or `none`; `follows` is the idempotency key
    whose first answer is awaited before this is sent."""

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
    def label(self) -> str:
        """Service and town, or what is wrong with the line."""
        if self.why or not isinstance(self.body, dict):
            return self.why or self.ref
        service = str(self.body.get("service_type", "")).replace("-", " ")
        return f"{service}, {_town(str(self.body.get('address', '')))}"


def load(path: Path = FILE) -> list[Line]:
    """The lines of a file of forms. Raises ValueError naming the line that is wrong, OSError without the file."""
    found = []
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is no text in UTF-8.") from None
    for number, text in enumerate(texts, 1):
        try:
            found.append(_line(json.loads(text)))
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    if not found:
        raise ValueError(f"{path.name} holds no forms.")
    return found


def _line(given: Any) -> Line:
    """Raises ValueError saying what is wrong."""
    if not isinstance(given, dict):
        raise ValueError("it is no JSON object")
    if unknown := given.keys() - {field.name for field in fields(Line)}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    if missing := NEEDED - given.keys():
        raise ValueError(f"missing: {', '.join(sorted(missing))}")
    if not _EXPECT.fullmatch(str(given["expect"])):
        raise ValueError(f"expect {given['expect']!r} is none of job, repeat, pending:reason, rejected:status")
    return Line(**given)


def _town(address: str) -> str:
    """The part before the ZIP code's: "200 W Washington St, Phoenix, AZ 85003" → Phoenix."""
    parts = [part.strip() for part in address.removesuffix(", USA").split(",") if part.strip()]
    if len(parts) > 2:
        return parts[-2]
    return parts[-1] if parts else "by map"
