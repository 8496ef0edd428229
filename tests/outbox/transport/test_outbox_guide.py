"""docs/outbox.md names every setting of the outbox with its default, as docs/configuration.md does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.conf import settings as django_settings

from dispatch.outbox.queues import TYPES

DOCS = Path(django_settings.BASE_DIR) / "docs"
ROW = re.compile(r"^\| `((?:OUTBOX|HTTP)_[A-Z_]+)` \| (.*?) \|", re.MULTILINE)


def rows(page: str) -> dict[str, str]:
    return dict(ROW.findall((DOCS / page).read_text()))


def test_every_setting_is_told_of() -> None:
    assert sorted(rows("outbox.md")) == sorted(rows("configuration.md"))
    given = {name for name in dir(django_settings) if name.startswith("OUTBOX_")}
    assert given <= set(rows("outbox.md"))


@pytest.mark.parametrize("name", sorted(rows("configuration.md")))
def test_with_the_same_default(name: str) -> None:
    told = rows("outbox.md")[name]
    if not told.startswith("("):
        assert told == rows("configuration.md")[name]


def test_every_queue_is_told_of() -> None:
    text = (DOCS / "outbox.md").read_text()
    assert all(f"\n| `{kind}`" in text for kind in TYPES)


@pytest.mark.parametrize("page", ["outbox.md", "receivers.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (DOCS / page).read_text()):
        assert target.startswith("https://") or (DOCS / target).exists(), target
