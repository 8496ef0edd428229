"""The shipped file of forms, line by line: what is sent, and how it must end."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("submissions.jsonl")


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
        if self.why:
            return self.why
        service = str(self.body["service_type"]).replace("-", " ")
        return f"{service}, {_town(self.body.get('address', ''))}"


def load(path: Path = FILE) -> list[Line]:
    """The lines of a file of forms. Raises ValueError naming the line that is wrong."""
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        try:
            found.append(Line(**json.loads(text)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    return found


def _town(address: str) -> str:
    """The part before the ZIP code's: "200 W Washington St, Phoenix, AZ 85003" → Phoenix."""
    parts = [part.strip() for part in address.removesuffix(", USA").split(",") if part.strip()]
    if len(parts) > 2:
        return parts[-2]
    return parts[-1] if parts else "by map"
