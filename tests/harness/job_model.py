"""A model of one job: recorded facts with their times decide who has it, in whatever order they are processed."""

from __future__ import annotations

from dataclasses import dataclass, field

# Seconds: the time to answer, the time to decide after answering, and the time to answer otherwise after a missed
# call. No sum of an extension and a multiple of 100 is a timeout, so that no two deadlines are alike.
TIMEOUT, EXTENSION, GRACE = 650, 430, 350
ACCEPT, DECLINE = "1", "2"


@dataclass
class FirstOffer:
    """A technician's first offer: pending, unanswered, declined, rescinded or accepted."""

    state: str = "pending"
    closed_deadline: int = 0
    was_answered: bool = False
    was_spoken: bool = False
    has_ended: bool = False
    pressed: str = ""


@dataclass
class Model:
    """The job, as the recorded facts decide it. Times are seconds since the first call.

    Facts are about the calls of first offers. A technician who is called again (after a pause) gives no answer in
    that call.
    """

    grace: int
    status: str = "dispatching"
    who: str = ""
    is_paused: bool = False
    assignments: int = 0
    queue: list[str] = field(default_factory=lambda: ["Bob"])
    live: str = "Ann"  # whose phone rings; "" if nobody's does
    deadline: int = TIMEOUT
    offers: dict[str, FirstOffer] = field(default_factory=lambda: {"Ann": FirstOffer()})

    @property
    def is_cascading(self) -> bool:
        return self.status == "dispatching" and not self.is_paused

    @property
    def accepted(self) -> list[str]:
        """Who has accepted the job and still has it."""
        return [name for name, offer in self.offers.items() if offer.state == "accepted"]

    def answer(self, name: str, at: int, is_spoken: bool) -> None:
        offer = self._offer_to(name)
        if offer.has_ended or offer.state != "pending":
            return
        offer.was_spoken |= is_spoken
        if not offer.was_answered:
            offer.was_answered = True
            self.deadline = max(self.deadline, at + EXTENSION)

    def end(self, name: str, at: int) -> None:
        offer = self._offer_to(name)
        if offer.has_ended or offer.state != "pending":
            return
        offer.has_ended = True
        is_missed = offer.was_spoken or not offer.was_answered  # else Dispatch was not reachable
        until = min(self.deadline, at + self.grace)
        if self.grace and is_missed and until > at:
            self.deadline = until
        else:
            self._close(offer, "unanswered")

    def press(self, name: str, key: str, at: int) -> None:
        offer = self._offer_to(name)
        if offer.pressed:
            return
        offer.pressed = key
        is_free = self.status == "pending" or self.is_cascading
        if offer.state == "pending":
            if key == ACCEPT:
                self._accept(name)
            elif at < self.deadline:
                self._close(offer, "declined")
        elif offer.state == "unanswered" and at < offer.closed_deadline and is_free:
            if key == ACCEPT:
                self._accept(name)
            else:
                offer.state = "declined"
        elif key == ACCEPT and is_free and not self._is_ringing_elsewhere(name):
            self._accept(name)  # a late yes for a job that nobody else is called for

    def result_of_yes(self, name: str) -> str:
        """Return what the call says after a yes: whose the job is; "" if it is nobody's."""
        if self.status != "assigned":
            return ""
        return "yours" if self.who == name else "taken"

    def is_due(self, at: int) -> bool:
        """Return whether the deadline of the ringing phone has passed."""
        return self.is_cascading and bool(self.live) and at >= self.deadline

    def expire(self, at: int) -> None:
        """Run the step if it is due: the deadline of the ringing phone, or the next call."""
        if not self.is_cascading or (self.live and not self.is_due(at)):
            return
        for offer in self.offers.values():
            if offer.state == "pending":
                self._close(offer, "unanswered")
        self.live = ""
        self.work(at)

    def work(self, at: int) -> None:
        if not self.is_cascading or self.live:
            return
        if self.queue:
            self.live, self.deadline = self.queue.pop(0), at + TIMEOUT
            self.offers.setdefault(self.live, FirstOffer())
        else:
            self.status = "pending"

    def decide(self, action: str) -> bool:
        """Apply a dispatcher's action. Return whether it is legal."""
        is_open = self.status in ("dispatching", "pending", "assigned")
        match action:
            case "assign" if is_open and self.who != "Cid":
                self._assign("Cid")
            case "assign_ann" if is_open and self.who != "Ann":
                self._assign("Ann")
            case "pause" if self.is_cascading:
                self.queue = [self.live, *self.queue] if self.live else self.queue
                self._withdraw()
                self.is_paused = True
            case "resume" if self.status == "dispatching" and self.is_paused:
                self.is_paused = False
            case "cancel" if is_open:
                self._withdraw()
                self.status, self.who, self.is_paused = "cancelled", "", False
            case "call_next" if self.is_cascading:
                self._withdraw()
            case "complete" if self.status == "assigned":
                self.status = "completed"
            case _:
                return False
        return True

    def calm(self) -> None:
        """Let all deadlines pass."""
        while self.is_cascading:
            self.expire(self.deadline)

    def _offer_to(self, name: str) -> FirstOffer:
        """Return the first offer. Who is called although the job was accepted already can't have it."""
        return self.offers.setdefault(name, FirstOffer("rescinded"))

    def _is_ringing_elsewhere(self, name: str) -> bool:
        if self.live in ("", name):
            return False
        offer = self.offers[self.live]
        return offer.state != "pending" or not offer.has_ended  # else the offer stays open after its call

    def _assign(self, name: str) -> None:
        self._withdraw()
        self.status, self.who, self.is_paused = "assigned", name, False
        self.assignments += 1

    def _withdraw(self) -> None:
        for offer in self.offers.values():
            if offer.state in ("pending", "accepted"):
                offer.state = "rescinded"
        self.live = ""

    def _close(self, offer: FirstOffer, how: str) -> None:
        offer.state, offer.closed_deadline, self.live = how, self.deadline, ""

    def _accept(self, name: str) -> None:
        for offer in self.offers.values():
            if offer.state == "pending":
                offer.state = "rescinded"
        self.status, self.who, self.live = "assigned", name, ""
        self.offers[name].state = "accepted"
        self.assignments += 1
