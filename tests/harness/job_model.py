"""A model of one job: recorded facts with their times decide who has it, in whatever order they are processed."""

from __future__ import annotations

from dataclasses import dataclass, field

# Seconds: the time to answer, the time to decide after answering, and the time to answer otherwise after a missed
# call.
TIMEOUT, EXTENSION, GRACE = 650, 450, 350


@dataclass
class Model:
    """The job, as the recorded facts decide it. Times are seconds since the first call."""

    grace: int
    status: str = "dispatching"
    who: str = ""
    is_paused: bool = False
    assignments: int = 0
    queue: list[str] = field(default_factory=lambda: ["Bob"])
    live: str = "Ann"  # whose phone rings; "" if nobody's does
    first: str = "pending"  # Ann's first offer: pending, unanswered, declined, rescinded or accepted
    deadline: int = TIMEOUT
    closed_deadline: int = 0
    was_answered: bool = False
    was_spoken: bool = False
    has_ended: bool = False
    pressed: str = ""

    @property
    def is_cascading(self) -> bool:
        return self.status == "dispatching" and not self.is_paused

    def answer(self, at: int, is_spoken: bool) -> None:
        if self.has_ended or self.first != "pending":
            return
        self.was_spoken |= is_spoken
        if not self.was_answered:
            self.was_answered = True
            self.deadline = max(self.deadline, at + EXTENSION)

    def end(self, at: int) -> None:
        if self.has_ended or self.first != "pending":
            return
        self.has_ended = True
        is_missed = self.was_spoken or not self.was_answered  # else Dispatch was not reachable
        until = min(self.deadline, at + self.grace)
        if self.grace and is_missed and until > at:
            self.deadline = until
        else:
            self._close_first("unanswered")

    def press(self, key: str, at: int) -> None:
        if self.pressed:
            return
        self.pressed = key
        is_free = self.status == "pending" or self.is_cascading
        if self.first == "pending":
            if key == "1":
                self._accept()
            elif at < self.deadline:
                self._close_first("declined")
        elif self.first == "unanswered" and at < self.closed_deadline and is_free:
            if key == "1":
                self._accept()
            else:
                self.first = "declined"
        elif key == "1" and (self.status == "pending" or (self.is_cascading and self.live in ("", "Ann"))):
            self._accept()  # a late yes for a job that nobody else is called for

    def expire(self, at: int) -> None:
        """Run the step if it is due: the deadline of the ringing phone, or the next call."""
        if not self.is_cascading or (self.live and at < self.deadline):
            return
        if self.first == "pending":
            self._close_first("unanswered")
        self.live = ""
        self.work(at)

    def work(self, at: int) -> None:
        if not self.is_cascading or self.live:
            return
        if self.queue:
            self.live, self.deadline = self.queue.pop(0), at + TIMEOUT
        else:
            self.status = "pending"

    def decide(self, action: str) -> bool:
        """Apply a dispatcher's action. Return whether it is legal."""
        is_open = self.status in ("dispatching", "pending", "assigned")
        match action:
            case "assign" if is_open and self.who != "Cid":
                self._withdraw()
                self.status, self.who, self.is_paused = "assigned", "Cid", False
                self.assignments += 1
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

    def _withdraw(self) -> None:
        if self.first in ("pending", "accepted"):
            self.first = "rescinded"
        self.live = ""

    def _close_first(self, how: str) -> None:
        self.first, self.closed_deadline, self.live = how, self.deadline, ""

    def _accept(self) -> None:
        self.status, self.who, self.first, self.live = "assigned", "Ann", "accepted", ""
        self.assignments += 1
