"""docs/guides/outbox.md names every setting of the outbox with the default of the reference page."""

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


def test_every_setting_is_documented() -> None:
    assert sorted(rows("guides/outbox.md")) == sorted(rows("reference/configuration.md"))
    given = {name for name in dir(django_settings) if name.startswith("OUTBOX_")}
    assert given <= set(rows("guides/outbox.md"))


@pytest.mark.parametrize("name", sorted(rows("reference/configuration.md")))
def test_with_the_same_default(name: str) -> None:
    told = rows("guides/outbox.md")[name]
    if not told.startswith("("):
        assert told == rows("reference/configuration.md")[name]


def test_every_queue_is_documented() -> None:
    text = (DOCS / "guides" / "outbox.md").read_text()
    assert all(f"\n| `{kind}`" in text for kind in TYPES)


@pytest.mark.parametrize("page", ["guides/outbox.md", "guides/receivers.md"])
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", (DOCS / page).read_text()):
        assert target.startswith("https://") or ((DOCS / page).parent / target).exists(), target
