"""Back off from a provider that refuses requests as too many."""

from __future__ import annotations

import random
import threading

from dispatch.core import clock


class RateLimitBackoff:
    """Doubling waits of accounts whose provider refuses a request as too many without saying for how long.

    One for all threads of the process. A burst of refusals counts once.
    """

    FIRST_S, MAX_S, JITTER = 1.0, 32.0, 0.5
    # After this many seconds without a refusal beyond the last wait, the next is a first one.
    CALM_S = 60.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[str, tuple[float, float]] = {}  # account → (wait, end of the wait)

    def wait_s(self, account: str) -> float:
        """Return how long the account waits after a refusal."""
        now = clock.now().timestamp()
        with self._lock:
            wait, until = self._waits.get(account, (0.0, 0.0))
            if now >= until:
                is_first = not wait or now >= until + self.CALM_S
                wait = self.FIRST_S if is_first else min(wait * 2, self.MAX_S)
                self._waits[account] = wait, now + wait
        return wait * (1 + self.JITTER * random.random())

    def reset(self, account: str) -> None:
        """Begin with the first wait again, because the provider accepted a request."""
        with self._lock:
            self._waits.pop(account, None)

    def reset_all(self) -> None:
        """Begin again with every account."""
        with self._lock:
            self._waits.clear()


backoff = RateLimitBackoff()
