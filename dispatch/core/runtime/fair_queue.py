"""An RQ queue on which organizations take turns, so that one organization's burst delays no other's first job.

Jobs are in the order of their rounds. The next job of an organization gets the round after that of its previous
job, but at least that of the head of the queue. A new job is inserted behind the last job of its round, instead of
at the end. In each round, an organization has one turn, so no job waits forever. Jobs without an organization take
turns like one organization.

Workers take jobs from the head, as from any RQ queue.
"""

from __future__ import annotations

from typing import Any

from rq import Queue
from rq.job import Job

from dispatch.core.redis.client import key

ORGANIZATION = "organization"  # in a job's meta
ROUNDS_KEPT_S = 86_400

# KEYS: the queue, the last round of each organization with the highest and the current round. ARGV: job id, prefix
# of jobs' keys, how long to keep KEYS[2]. The current round never goes back until the queue is empty.
# The round of a job is a field of its hash, so it is deleted with it. The rounds are sorted, so the place is found
# by bisection.
_PUSH = """
local function round_of(id)
    return tonumber(redis.call('HGET', ARGV[2] .. id, 'round') or '') or 0
end
local organization = '0'
local meta = redis.call('HGET', ARGV[2] .. ARGV[1], 'meta')
if meta then
    local ok, found = pcall(cjson.decode, meta)
    if ok and type(found) == 'table' and type(found.organization) == 'number' then
        organization = string.format('%d', found.organization)
    end
end
local length = redis.call('LLEN', KEYS[1])
local current = 0
if length == 0 then
    redis.call('DEL', KEYS[2])
else
    -- The head may have no round, or an old one: put at the front, by an older version, or its hash is gone.
    for place = 0, math.min(length, 20) - 1 do
        local found = redis.call('HGET', ARGV[2] .. redis.call('LINDEX', KEYS[1], place), 'round')
        if found then
            current = tonumber(found) or 0
            break
        end
    end
    current = math.max(current, tonumber(redis.call('HGET', KEYS[2], 'current') or '') or 0)
end
local last = tonumber(redis.call('HGET', KEYS[2], organization) or '')
local round = current
if last and last + 1 > round then round = last + 1 end
redis.call('HSET', ARGV[2] .. ARGV[1], 'round', round)
redis.call('HSET', KEYS[2], organization, round, 'current', current)
redis.call('EXPIRE', KEYS[2], ARGV[3])
local highest = tonumber(redis.call('HGET', KEYS[2], 'highest') or '') or -1
if round >= highest then
    redis.call('HSET', KEYS[2], 'highest', round)
    return redis.call('RPUSH', KEYS[1], ARGV[1])
end
local low, high = 0, length
while low < high do
    local middle = math.floor((low + high) / 2)
    if round_of(redis.call('LINDEX', KEYS[1], middle)) > round then high = middle else low = middle + 1 end
end
if low >= length then return redis.call('RPUSH', KEYS[1], ARGV[1]) end
return redis.call('LINSERT', KEYS[1], 'BEFORE', redis.call('LINDEX', KEYS[1], low), ARGV[1])
"""


class FairQueue(Queue):
    """An RQ queue that inserts a job in the turn of its organization (`meta`), not at the end.

    Its jobs depend on no others.
    """

    def setup_dependencies(self, job: Job, pipeline: Any = None) -> Job:
        """Do nothing. RQ would require that the pipeline has no commands yet."""
        return job

    def push_job_id(self, job_id: str, pipeline: Any = None, at_front: bool = False) -> None:
        """Put the id of a stored job on the queue."""
        if at_front:
            super().push_job_id(job_id, pipeline=pipeline, at_front=True)
            return
        connection = pipeline if pipeline is not None else self.connection
        connection.eval(
            _PUSH, 2, self.key, key("rounds", self.name), job_id, Job.redis_job_namespace_prefix, ROUNDS_KEPT_S
        )
