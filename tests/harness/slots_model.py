"""A model of one emergency that is offered to two technicians at once: recorded facts decide who has it."""

from __future__ import annotations

from dataclasses import dataclass, field

# Seconds: the time to answer, and the time to decide after answering.
TIMEOUT, EXTENSION = 650, 430
AT_ONCE = 2


@dataclass
class SlotsModel:
    """The job, as the recorded facts decide it. Times are seconds since the first calls."""

    queue: list[str]
    pending: dict[str, int] = field(default_factory=dict)  # technician → deadline
    unanswered: dict[str, int] = field(default_factory=dict)  # technician → deadline of the closed offer
    answered: set[str] = field(default_factory=set)
    pressed: set[str] = field(default_factory=set)
    status: str = "dispatching"
    who: str = ""

    def answer(self, name: str, at: int) -> None:
        if name in self.pending and name not in self.answered:
            self.answered.add(name)
            self.pending[name] = max(self.pending[name], at + EXTENSION)

    def end(self, name: str) -> None:
        if name in self.pending:
            self._close(name)

    def press(self, name: str, key: str, at: int) -> None:
        if name in self.pressed or self.status == "assigned":
            return
        self.pressed.add(name)
        if name in self.pending:
            if key == "1":
                self._accept(name)
            elif at < self.pending[name]:
                del self.pending[name]
        elif name in self.unanswered and key == "1":
            is_early = at < self.unanswered[name]  # closed before the key was processed
            if is_early or self.status == "pending" or not self.pending:
                self._accept(name)

    def expire(self, at: int) -> None:
        if self.status != "dispatching":
            return
        for name in [name for name, deadline in self.pending.items() if at >= deadline]:
            self._close(name)
        self.fill(at)

    def fill(self, at: int) -> None:
        if self.status != "dispatching":
            return
        while self.queue and len(self.pending) < AT_ONCE:
            self.pending[self.queue.pop(0)] = at + TIMEOUT
        if not self.pending:
            self.status = "pending"

    def calm(self) -> None:
        """Let all deadlines pass."""
        while self.status == "dispatching":
            self.expire(max(self.pending.values(), default=0))

    def _close(self, name: str) -> None:
        self.unanswered[name] = self.pending.pop(name)

    def _accept(self, name: str) -> None:
        self.status, self.who = "assigned", name
        self.pending.clear()
