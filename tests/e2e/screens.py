"""Screens on which a flow is played: width in CSS pixels and color scheme."""

from __future__ import annotations

import pytest

# The suite plays each flow at one of the first two, in turns (conftest.py); `make soak` plays the others.
SCREENS = [
    (1440, "light"),
    (390, "dark"),
    pytest.param(1440, "dark", marks=pytest.mark.soak),
    pytest.param(390, "light", marks=pytest.mark.soak),
]
