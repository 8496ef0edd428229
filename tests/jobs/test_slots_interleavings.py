"""Every interleaving of the webhooks of two phones that ring at once has one outcome, which a model predicts.

Each request arrives in any order that the provider can produce: doubled, or recorded by a process that dies before
it acts, and then repeated. Deadlines, the auditor and the workers come between them.
"""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import Offer
from dispatch.technicians.models import Technician
from tests.harness.interleavings import ACTED, RECORDED, Interleaving, play, post_and_die, soak_seeds
from tests.harness.jobs import Floor
from tests.harness.several import call_of, emergency, offer_of
from tests.harness.slots_model import AT_ONCE, EXTENSION, TIMEOUT, SlotsModel

# Seconds between steps: multiples of 100, so that no deadline is near a step.
PAUSES = ((0, 0, 100, 200), (0, 100, 200, 400))
HISTORIES = (
    ["in-progress", "voice", "1", "completed"],
    ["in-progress", "voice", "2", "completed"],
    ["in-progress", "voice", "completed"],
    ["ringing", "no-answer"],
)


class Play(Interleaving):
    """One random interleaving of the calls to Ann and Bob, which ring at once."""

    def __init__(self, floor: Floor, seed: int) -> None:
        super().__init__(floor, seed)
        floor.set_policy(
            offers_at_once_for_emergencies=AT_ONCE, answer_timeout_s=TIMEOUT, answered_extension_s=EXTENSION,
            ring_timeout_s=60, auto_pause_misses=0, rounds=1, max_candidates=5, technician_wait_s=0,
        )  # fmt: skip
        Technician.objects.update(is_active=False)
        self.crew = {one.name: one for one in floor.crew("Ann", "Bob", "Cid", "Dee")}
        self.job = emergency(floor)
        self.calls = {name: call_of(offer_of(self.job, self.crew[name])) for name in ("Ann", "Bob")}
        self.model = SlotsModel(["Cid", "Dee"], {"Ann": TIMEOUT, "Bob": TIMEOUT})
        self.start = clock.now()

    def run(self) -> None:
        pauses = self.chance.choice(PAUSES)
        for name, what in self._script():
            self.travel(self.chance.choice(pauses))
            self.story.append(f"{self.at} {name} {what}".strip())
            self.repeat_held()
            if name:
                self._deliver(name, what)
            else:
                self._pass(what)
            self.watch()
        self._calm()
        self._check()

    def _script(self) -> list[tuple[str, str]]:
        """The steps in the order of their arrival. The reports about one phone keep their order."""
        chance = self.chance
        left = {name: list(chance.choices(HISTORIES, weights=[5, 2, 1, 1])[0]) for name in self.calls}
        left[""] = chance.choices(["expire", "audit", "work"], k=chance.choice([1, 2, 4]))
        steps = []
        while waiting := [name for name, history in left.items() if history]:
            name = chance.choice(waiting)
            steps.append((name, left[name].pop(0)))
        return steps

    def _pass(self, what: str) -> None:
        """Let a timer, the auditor or the workers run."""
        if what == "work":
            self.floor.work()
            self.model.fill(self.at)
            return
        if what == "expire":
            services.expire_offer(self.job.pk, self.floor.job(self.job).step_token)
        else:
            clock.travel(10)
            self.audit()
        self.model.expire(self.at)

    def _deliver(self, name: str, what: str) -> None:
        request, chance = self.request(name, what), self.chance
        dies_at = chance.choice(["", "", RECORDED, ACTED] if what in "12" else ["", "", RECORDED])
        if dies_at:
            self.story[-1] += f", the process dies at {dies_at}"
            post_and_die(request, dies_at)
            self.held.append(request)
            self.repeat_held()
        else:
            assert request.post().status_code in (200, 204)
        if chance.random() < 0.3:
            self.story[-1] += ", doubled"
            assert request.post().status_code in (200, 204)
        match what:
            case "1" | "2":
                self.model.press(name, what, self.at)
            case "in-progress" | "voice":
                self.model.answer(name, self.at)
            case "completed" | "no-answer":
                self.model.end(name)

    def watch(self) -> None:
        """Check that no slot and no technician has two pending offers, and that nobody is offered it twice."""
        live = Offer.objects.filter(job=self.job, status="pending")
        slots, technicians = zip(*live.values_list("slot", "technician_id"), strict=True) if live else ((), ())
        assert len(live) <= AT_ONCE, self.story
        assert len(set(slots)) == len(set(technicians)) == len(live), self.story
        offered = list(Offer.objects.filter(job=self.job).values_list("technician_id", flat=True))
        assert len(offered) == len(set(offered)), self.story

    def _calm(self) -> None:
        """Let all deadlines pass."""
        self.pass_deadlines()
        self.model.fill(self.at)
        self.model.calm()

    def _check(self) -> None:
        job, model = self.floor.job(self.job), self.model
        told = "\n".join([*self.story, str(model), self.floor.story()])
        found = (job.status, job.technician.name if job.technician else "")
        assert found == (model.status, model.who), told
        assert self.floor.kinds(job).count("job.assigned") == (model.status == "assigned"), told
        accepted = Offer.objects.filter(job=job, status="accepted").values_list("technician__name", flat=True)
        assert list(accepted) == [model.who] * (model.status == "assigned"), told
        for technician in Technician.objects.filter(is_active=True):
            assert technician.live_offer_id is None, told
            assert technician.open_jobs == (technician.pk == job.technician_id), told


@pytest.mark.parametrize("part", range(2))
def test_random_interleavings_of_two_phones_have_the_outcome_of_the_model(floor, part):
    play(Play, floor, range(part * 8, part * 8 + 8))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
def test_many_interleavings_of_two_phones_have_the_outcome_of_the_model(floor, part):
    play(Play, floor, soak_seeds(part))
