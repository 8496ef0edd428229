"""Every template compiles: its tags and filters exist under the names that it uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.conf import settings
from django.template.loader import get_template

FOLDER = Path(settings.BASE_DIR) / "templates"
NAMES = sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", NAMES)
def test_the_template_compiles(name: str) -> None:
    get_template(name)
