"""docs/guides/notifications.md lists every kind, exactly as in the rules."""

from __future__ import annotations

import re
from pathlib import Path

from django.conf import settings

from dispatch.core.runtime.loops import find_loop
from notifications import rules
from notifications.services.preferences import default_steps

PAGE = (Path(settings.BASE_DIR) / "docs" / "guides" / "notifications.md").read_text()


def test_the_table_is_the_table_of_rules() -> None:
    told = re.findall(r"^\| `([^`]+)` \| (.+?) \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    assert told == [(rule.kind, rule.label, rule.level, rule.to) for rule in rules.TABLE]


def test_the_steps_are_those_that_are_installed() -> None:
    steps = [(step.audience, step.after_s, step.spacing_s) for step in default_steps()]
    assert steps == [("on_duty", 120, 45), ("dispatchers", 60, 0), ("admins", 120, 0)]
    assert (settings.ALERT_REPEAT_S, settings.ALERT_AGAIN_AFTER_S) == (60, 900)
    words = ["after 2 minutes", "45 s apart", "a minute later", "two minutes later", "a quarter of an hour"]
    assert re.findall("|".join(words), PAGE) == words


def test_its_loops_exist() -> None:
    named = re.findall(r"`(notif\w+)`", PAGE)
    assert len(named) == 6
    for name in named:
        assert find_loop(name)
