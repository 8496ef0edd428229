"""What Redis holds is believed only while its generation key stands beside it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.core import generation
from dispatch.core.redis import REDIS_ERRORS, Script, client, key
from tests.conftest import forget_redis
from tests.core.outages import redis_away

READ = Script("test_read", generation.GUARD + "return redis.call('GET', KEYS[2])")


def read() -> bytes | None:
    return READ(keys=[generation.key_name(), key("figure")])


@pytest.fixture(autouse=True)
def rebuilt(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The only rebuilder writes the figure 7; the list grows with each rebuild."""
    times: list[int] = []

    def rebuild() -> None:
        times.append(1)
        client().set(key("figure"), 7)

    monkeypatch.setattr(generation, "_rebuilders", [rebuild])
    return times


def test_an_empty_redis_is_not_believed() -> None:
    assert read() == generation.NOT_READY


def test_ensuring_rebuilds_once_and_then_leaves_it(rebuilt: list[int]) -> None:
    assert generation.ensure()
    assert read() == b"7"
    assert generation.ensure()
    assert len(rebuilt) == 1


def test_a_flush_at_any_time_is_noticed_and_mended(rebuilt: list[int]) -> None:
    generation.ensure()
    before = generation.current()
    forget_redis()
    assert read() == generation.NOT_READY
    assert generation.ensure()
    assert read() == b"7"
    assert generation.current() != before
    assert len(rebuilt) == 2


def test_a_flush_while_rebuilding_leaves_it_unbelieved(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = iter([True, False])

    def rebuild() -> None:
        client().set(key("figure"), 7)
        if next(lost):
            forget_redis()  # half of what was written is gone

    monkeypatch.setattr(generation, "_rebuilders", [rebuild])
    assert not generation.ensure()
    assert read() == generation.NOT_READY
    assert generation.ensure()
    assert read() == b"7"


def test_a_rebuilder_that_fails_leaves_it_unbelieved_and_lets_the_next_try(
    rebuilt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    good = list(generation._rebuilders)

    def fails() -> None:
        raise ValueError("no such table")

    monkeypatch.setattr(generation, "_rebuilders", [*good, fails])
    with pytest.raises(ValueError, match="no such table"):
        generation.ensure()
    assert generation.current() is None
    monkeypatch.setattr(generation, "_rebuilders", good)
    assert generation.ensure()


def test_only_one_rebuilds_at_a_time(rebuilt: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    answers: list[str | None] = []

    def rebuild() -> None:
        answers.append(generation.establish())  # a second process, in the middle of the first's work

    monkeypatch.setattr(generation, "_rebuilders", [rebuild])
    assert generation.ensure()
    assert answers == [None]


def test_without_redis_the_answer_is_no_and_scripts_raise_what_callers_catch() -> None:
    with redis_away():
        assert not generation.ensure()
        with pytest.raises(REDIS_ERRORS):
            read()
    assert generation.ensure()


def test_scripts_survive_a_server_that_forgot_them() -> None:
    generation.ensure()
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
