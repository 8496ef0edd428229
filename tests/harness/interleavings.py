"""Random interleavings of one job's webhooks, deadlines and actions, played against the application and a model.

A test module derives its own `Interleaving`; the same seed has the same steps. Requests arrive in any order that
the provider can produce: doubled, or recorded by a process that dies before it acts, and then repeated.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterable

from dispatch.core import clock, fault_injection
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.telephony.loops import place_due
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
from tests.harness.provider import Signed, end, key_pressed, signed

# Where a process dies while it handles a webhook: before it acts, or before it answers.
RECORDED, ACTED = "telephony.webhook.committed", "jobs.answer.committed"
# Interleavings in one part of the soak.
IN_PART = 25


class Interleaving:
    """One random interleaving. Times are seconds since the first call."""

    job: Job

    def __init__(self, floor: Floor, seed: int) -> None:
        self.floor, self.chance = floor, random.Random(seed)
        self.story = [f"seed {seed}"]
        self.calls: dict[str, Call] = {}  # technician → their first call
        self.held: list[Signed] = []  # recorded and not acted on; the provider repeats them
        self.start, self.at = clock.now(), 0

    def run(self) -> None:
        """Play the interleaving, and compare its outcome with the model's."""
        raise NotImplementedError

    def watch(self) -> None:
        """Check what holds at any moment."""

    def travel(self, seconds: int) -> None:
        """Move the clock to a step that is `seconds` after the last one, however long that one took."""
        self.at += seconds
        clock.travel(max(0.0, self.at - (clock.now() - self.start).total_seconds()))

    def audit(self) -> None:
        """Run the auditor and the placer."""
        services.audit()
        clock.travel(1.1)
        place_due()

    def request(self, who: str, name: str) -> Signed:
        """Return the webhook of this name about this technician's first call."""
        sim, call = self.floor.sim, self.calls[who]
        if name in "12":
            return key_pressed(sim, call, name)
        if name == "voice":
            return signed(sim, call, "voice", CallStatus="in-progress")
        sequence = {"ringing": "1", "in-progress": "2"}.get(name, "3")
        return signed(sim, call, "status", CallStatus=name, SequenceNumber=sequence)

    def repeat_held(self) -> None:
        """Repeat what the provider had no good answer to."""
        while self.held:
            assert self.held.pop(0).post().status_code in (200, 204)

    def pass_deadlines(self) -> None:
        """Let all deadlines pass, and report the end of every call."""
        for _ in range(8):
            self.floor.work()
            job = self.floor.job(self.job)
            if job.status != "dispatching" or job.paused_at:
                break
            assert job.next_action_at is not None
            clock.travel(max(0.0, (job.next_action_at - clock.now()).total_seconds()) + 3)
            self.audit()
            self.watch()
        for call in Call.objects.filter(ended_at=None).order_by("pk"):
            assert end(self.floor.sim, call).status_code == 204
        self.floor.work()


def post_and_die(request: Signed, point: str) -> bool:
    """Post the request to a process that dies at this point. Return whether it died.

    What is only caught up with, such as another technician's recorded key, may fail without failing the request.
    """

    def die() -> None:
        raise RuntimeError("the process has trouble")

    with fault_injection.arm_crash_point(point, die):
        status = request.post_to_django().status_code  # in a group, a recorded key is applied as well
    assert status in (200, 204, 500)
    return status == 500


def play(kind: type[Interleaving], floor: Floor, seeds: Iterable[int]) -> None:
    """Play the interleavings of these seeds, one after another."""
    floor.sim.lose_callbacks()  # the test sends them
    for seed in seeds:
        kind(floor, seed).run()


def soak_seeds(part: int) -> range:
    """Return the seeds of one part of the soak: from SOAK_SEED, or random ones, which are printed."""
    first = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(1_000_000)) + part * IN_PART
    print(f"SOAK_SEED={first - part * IN_PART}")  # noqa: T201
    return range(first, first + IN_PART)
