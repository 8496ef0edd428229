"""Write the provider's responses in batches. Those that arrive while a batch is being written form the next batch.

A response is the only knowledge of its call's SID. It is therefore kept while the database is unavailable.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

import structlog

from dispatch.core.db.batcher import DatabaseThread
from dispatch.leads import counters
from dispatch.leads.pool_rotation import TROUBLE_S
from dispatch.leads.services import claim_failures, completion
from dispatch.telephony.services import bulk as telephony
from dispatch.telephony.services.bulk import RequestResult

log = structlog.get_logger(__name__)

MAX_RESULTS = 500
# For how long responses are kept that can't be written because the database is unavailable (seconds).
KEEP_S = 30.0
InFlight = Callable[[Iterable[int]], None]


class ResponseWriter:
    """The writer of one dialer.

    `add_in_flight` and `end_in_flight` take the organizations of leads, once per lead: of responses that have to
    be written again, and of responses that were written or given up.
    """

    def __init__(self, add_in_flight: InFlight, end_in_flight: InFlight) -> None:
        self._add_in_flight, self._end_in_flight = add_in_flight, end_in_flight
        self._thread = DatabaseThread("leads-settle")
        self._responses: list[RequestResult] = []
        self._has_responses = asyncio.Event()
        self._unwritten_since: dict[int, float] = {}  # call → when its response could first not be written
        self.lateness: list[float] = []  # of requested calls (seconds), not counted yet

    def add(self, *responses: RequestResult) -> None:
        """Write these responses soon."""
        self._responses += responses
        self._has_responses.set()

    async def run(self) -> None:
        """Write responses until the task is canceled."""
        while True:
            if not self._responses:
                self._has_responses.clear()
                await self._has_responses.wait()
            batch, self._responses = self._responses[:MAX_RESULTS], self._responses[MAX_RESULTS:]
            lateness, self.lateness = self.lateness, []
            counters.observe_many(counters.due_to_dial, lateness)
            await self._write(batch)
            self._end_in_flight(answer.call.organization_id for answer in batch)

    def close(self) -> None:
        """Stop the thread. Blocks until it has ended."""
        self._thread.close()

    async def _write(self, batch: list[RequestResult]) -> None:
        try:
            locked_elsewhere = await self._thread.run(lambda: _write_results(batch))
        except Exception as error:
            if claim_failures.is_outage(error):
                log.warning("call_outcomes_kept", calls=len(batch), error=str(error).strip())
                self._keep(batch)
            elif len(batch) == 1:  # the reconcilers of calls and claims end it
                log.exception("call_outcome_not_recorded", call=batch[0].call_id)
            else:
                log.warning("outcome_batch_failed", calls=len(batch), error=str(error).strip())
                for answer in batch:
                    await self._write([answer])
            return
        for answer in batch if self._unwritten_since else ():
            self._unwritten_since.pop(answer.call_id, None)
        self._write_later(locked_elsewhere)

    def _keep(self, batch: list[RequestResult]) -> None:
        """Write the responses again later, each for at most KEEP_S."""
        now, kept = time.monotonic(), []
        for answer in batch:
            if now - self._unwritten_since.setdefault(answer.call_id, now) < KEEP_S:
                kept.append(answer)
            else:  # the reconcilers of calls and claims end it
                del self._unwritten_since[answer.call_id]
                log.error("call_outcome_not_recorded", call=answer.call_id)
        self._write_later(kept)

    def _write_later(self, answers: list[RequestResult]) -> None:
        if answers:
            self._add_in_flight(answer.call.organization_id for answer in answers)
            asyncio.get_running_loop().call_later(TROUBLE_S, self.add, *answers)


def _write_results(answers: Sequence[RequestResult]) -> list[RequestResult]:
    """Write the responses. Return those whose leads another session has locked, to be written later."""
    locked_elsewhere: list[RequestResult] = []
    for other in completion.record_outcomes(answers, locked_elsewhere):
        telephony.record_result(other)
    return locked_elsewhere
