"""Every command of docs/guides/api-tour.md runs against the real server and answers as the page shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from tests.support import factories as make
from tests.support.processes import running
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)

PAGE = Path(django_settings.BASE_DIR) / "docs" / "guides" / "api-tour.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```\n(?:```json\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
MARK = "--- end of a block ---"


def blocks() -> list[tuple[str, Any]]:
    """Return (commands, the answer shown for the last of them, or None)."""
    found = BLOCK.findall(PAGE.read_text())
    return [(commands, json.loads(shown) if shown else None) for commands, shown in found]


@pytest.fixture
def organization(app_url: str, test_environment: dict[str, str]) -> Iterator[Any]:
    """Create an organization with nobody near the tour's place; run a worker for jobs and the loop for alerts."""
    made = make.organization()
    environment = {**test_environment, "PUBLIC_BASE_URL": app_url}
    with (
        running("worker", django_settings.DISPATCH_QUEUE, env=environment) as worker,
        running("dispatcher", "--only", "notifier", env=environment) as dispatcher,
    ):
        worker.says("worker_started")
        dispatcher.says("loops_started")
        yield made


def test_the_page_is_run_from_top_to_bottom(app_url: str, organization: Any) -> None:
    script = "set -uo pipefail\n" + "".join(f"{commands}\necho\necho '{MARK}'\n" for commands, _ in blocks())
    environment = {**os.environ, "DISPATCH_URL": app_url, "DISPATCH_KEY": make.api_key(organization)}
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, check=False
    )
    answers = done.stdout.split(MARK)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    assert not done.stderr, done.stderr
    assert len(answers) == len(blocks()) + 1
    for (commands, shown), answer in zip(blocks(), answers, strict=False):
        if shown is not None:
            assert_shows(last_json(answer, commands), shown, commands)
    assert "idempotency-replayed: true" in done.stdout.lower()
    assert "ratelimit-remaining:" in done.stdout.lower()


def last_json(answer: str, commands: str) -> Any:
    """Return the last JSON value that a block printed; answers follow each other without a line break."""
    decoder, found, text = json.JSONDecoder(), None, answer.strip()
    while text:
        start = text.find("{")
        if start < 0:
            break
        found, end = decoder.raw_decode(text, start)
        text = text[end:]
    assert found is not None, f"no JSON came of:\n{commands}\n{answer}"
    return found


def assert_shows(answer: Any, shown: Any, commands: str) -> None:
    """Assert that the answer has all that the page shows; "…" matches any text, and a list may be longer."""
    if isinstance(shown, dict):
        assert isinstance(answer, dict), (commands, answer)
        for name, value in shown.items():
            assert name in answer, f"{commands}: {name} is not in {answer}"
            assert_shows(answer[name], value, commands)
    elif isinstance(shown, list):
        assert isinstance(answer, list), (commands, answer)
        assert len(answer) >= len(shown), (commands, answer)
        for one, value in zip(answer, shown, strict=False):
            assert_shows(one, value, commands)
    elif shown == "…":
        assert answer, commands
    else:
        assert answer == shown, f"{commands}: {answer!r} is not {shown!r}"


def test_links_of_the_page_lead_somewhere() -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", PAGE.read_text()):
        assert target.startswith("https://") or (PAGE.parent / target).exists(), target
