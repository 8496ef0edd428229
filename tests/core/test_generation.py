"""The data in Redis is valid only while its generation key exists."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.core.redis import generation
from dispatch.core.redis.client import REDIS_ERRORS, Script, client, key
from tests.conftest import forget_redis
from tests.core.outages import redis_away

READ = Script("test_read", generation.GUARD + "return redis.call('GET', KEYS[2])")


def read() -> bytes | None:
    return READ(keys=[generation.key_name(), key("figure")])


@pytest.fixture(autouse=True)
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Register one rebuilder, which writes the figure 7; the list grows with each rebuild."""
    times: list[int] = []

    def rebuild() -> None:
        times.append(1)
        client().set(key("figure"), 7)

    monkeypatch.setattr(generation, "_rebuilders", [rebuild])
    return times


def test_empty_redis_is_not_trusted() -> None:
    assert read() == generation.NOT_READY


def test_ensure_rebuilds_only_once(rebuilt: list[int]) -> None:
    assert generation.ensure_generation()
    assert read() == b"7"
    assert generation.ensure_generation()
    assert len(rebuilt) == 1


def test_flush_at_any_time_is_detected_and_repaired(rebuilt: list[int]) -> None:
    generation.ensure_generation()
    before = generation.current_generation()
    forget_redis()
    assert read() == generation.NOT_READY
    assert generation.ensure_generation()
    assert read() == b"7"
    assert generation.current_generation() != before
    assert len(rebuilt) == 2


def test_flush_during_a_rebuild_leaves_redis_untrusted(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = iter([True, False])

    def rebuild() -> None:
        client().set(key("figure"), 7)
        if next(lost):
            forget_redis()  # half of the written data is gone

    monkeypatch.setattr(generation, "_rebuilders", [rebuild])
    assert not generation.ensure_generation()
    assert read() == generation.NOT_READY
    assert generation.ensure_generation()
    assert read() == b"7"


def test_failed_rebuild_leaves_redis_untrusted_for_the_next(
    rebuilt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = list(generation._rebuilders)

    def fails() -> None:
        raise ValueError("no such table")

    monkeypatch.setattr(generation, "_rebuilders", [*good, fails])
    with pytest.raises(ValueError, match="no such table"):
        generation.ensure_generation()
    assert generation.current_generation() is None
    monkeypatch.setattr(generation, "_rebuilders", good)
    assert generation.ensure_generation()


def test_only_one_rebuilds_at_a_time(rebuilt: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | None] = []

    def rebuild() -> None:
        answers.append(generation.rebuild_all())  # a second process, in the middle of the first's work

    monkeypatch.setattr(generation, "_rebuilders", [rebuild])
    assert generation.ensure_generation()
    assert answers == [None]


def test_without_redis_scripts_raise_errors_that_callers_catch() -> None:
    with redis_away():
        assert not generation.ensure_generation()
        with pytest.raises(REDIS_ERRORS):
            read()
    assert generation.ensure_generation()


def test_scripts_survive_a_server_that_forgot_them() -> None:
    generation.ensure_generation()
    read()
    client().script_flush()
    assert read() == b"7"


def test_scripts_know_the_moved_time() -> None:
    from dispatch.core import clock

    script = Script("test_now", "return string.format('%.0f', now_ms(ARGV[1]))")
    clock.travel(3600)
    before = clock.now_ms()
    told = int(script(args=[clock.offset_ms()]))
    assert before - 1000 <= told <= clock.now_ms() + 1000
