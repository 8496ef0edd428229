"""How many workers a queue should have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dispatch.core.runtime.autoscaling_rules import Policy, QueueState, cap_workers, decide

POLICY = Policy(minimum=1, maximum=8, per_worker=10, oldest_s=2, calm_s=60)
QUIET = QueueState(waiting=0, oldest_s=0)


def test_burst_doubles_workers_up_to_the_maximum():
    workers, steps = 1, []
    while workers < 8:
        workers = decide(POLICY, QueueState(waiting=500, oldest_s=0.5), workers, None, 0).workers
        steps.append(workers)
    assert steps == [2, 4, 8]


def test_few_that_wait_long_get_one_more():
    found = decide(POLICY, QueueState(waiting=3, oldest_s=7), 2, None, 0)
    assert (found.workers, found.why) == (3, "the oldest of 3 waits 7 s")


def test_a_lull_stops_nobody_until_it_has_lasted():
    calm = decide(POLICY, QUIET, 4, None, 100)
    assert (calm.workers, calm.calm_since) == (4, 100)
    assert decide(POLICY, QUIET, 4, calm.calm_since, 159).workers == 4
    assert decide(POLICY, QUIET, 4, calm.calm_since, 160).workers == 3


def test_each_step_down_begins_a_new_calm():
    down = decide(POLICY, QUIET, 4, 0, 60)
    assert decide(POLICY, QUIET, down.workers, down.calm_since, 61).workers == 3


def test_work_during_a_lull_restarts_it():
    assert decide(POLICY, QueueState(waiting=40, oldest_s=0.1), 4, 0, 59).calm_since is None


def test_workers_that_are_busy_are_not_too_many():
    assert decide(POLICY, QueueState(waiting=0, oldest_s=0, busy=4), 4, 0, 600).workers == 4


@given(
    st.integers(0, 5), st.integers(0, 10), st.integers(0, 10_000), st.floats(0, 1e4), st.integers(0, 30),
    st.none() | st.floats(0, 1e6), st.floats(0, 1e6),
)  # fmt: skip
def test_never_below_the_minimum_nor_above_the_maximum(least, more, waiting, oldest, workers, since, now):
    policy = Policy(minimum=least, maximum=least + more)
    found = decide(policy, QueueState(waiting, oldest), workers, since, now)
    assert policy.minimum <= found.workers <= policy.maximum


@given(st.dictionaries(st.sampled_from("abcdef"), st.tuples(st.integers(0, 4), st.integers(0, 20)), min_size=1),
       st.integers(0, 60))  # fmt: skip
def test_the_databases_connections_are_shared_and_nobody_loses_the_minimum(queues, cap):
    minimums = {name: least for name, (least, _) in queues.items()}
    wanted = {name: least + more for name, (least, more) in queues.items()}
    given_ = cap_workers(cap, wanted, minimums)
    assert all(minimums[name] <= given_[name] <= wanted[name] for name in queues)
    assert sum(given_.values()) <= max(cap, sum(minimums.values()))
    if sum(wanted.values()) <= cap:
        assert given_ == wanted
