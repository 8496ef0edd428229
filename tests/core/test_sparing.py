"""A server that failed is left alone for a while, by this process."""

from types import SimpleNamespace

import pytest

from dispatch.core import sparing


def test_a_failure_is_remembered_for_the_pause_and_the_next_one_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(sparing, "time", SimpleNamespace(monotonic=lambda: now))
    server, other = sparing.Spared(2.0), sparing.Spared(2.0)
    assert not server
    server.failed()
    assert server, "just after"
    assert not other, "each server by itself"
    now += 1.9
    assert server
    now += 0.1
    assert not server, "it is asked again"
    server.failed()
    sparing.believe_all_again()
    assert not server
