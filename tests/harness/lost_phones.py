"""What is done when a technician has lost their phone."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from tests.harness.jobs import MARIA
from tests.support import factories

Loss = Callable[[Technician], None]


def revoke(technician: Technician) -> None:
    technicians.void_links(technician.pk, actor=MARIA)


def change_phone(technician: Technician) -> None:
    technicians.change_technician(technician.pk, {"phone": factories.phone()}, actor=MARIA)


@pytest.fixture(params=[revoke, change_phone], ids=["links revoked", "phone changed"])
def lose_phone(request: pytest.FixtureRequest) -> Loss:
    chosen: Loss = request.param
    return chosen
