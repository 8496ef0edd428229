"""Each organization's share of the leads in progress."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dispatch.leads.rules.fairness import fair_share


@pytest.mark.parametrize(
    ("held", "free", "share"), [(0, 1000, 875), (875, 125, 0), (0, 125, 109), (0, 1, 1), (1, 1, 0), (0, 0, 0)]
)
def test_an_organization_gets_most_of_what_is_free(held: int, free: int, share: int) -> None:
    assert fair_share(held, free) == share


@given(held=st.lists(st.integers(0, 300), max_size=8), total=st.integers(1, 2000))
def test_the_shares_never_exceed_what_is_free(held: list[int], total: int) -> None:
    free = max(total - sum(held), 0)
    for mine in held:
        assert 0 <= fair_share(mine, free) <= free
