"""Screens on which a flow is played: width in CSS pixels and color scheme."""

from __future__ import annotations

import pytest

# Each width and each scheme once; the other combinations are played by `make soak`.
SCREENS = [
    (1440, "light"),
    (390, "dark"),
    pytest.param(1440, "dark", marks=pytest.mark.soak),
    pytest.param(390, "light", marks=pytest.mark.soak),
]
