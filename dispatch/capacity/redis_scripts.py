"""Define the Lua scripts for lines and rates. Each script is one atomic step.

All scripts return NOT_READY while the generation key is missing, except `ADOPT` and `RESTORE_RATE`, which write
the state from Postgres.

Keys, all below KEYS[2] = key("capacity"):
  leases              hash  holder → "number:line slot:pool:pool slot:taken at (ms)"
  line:<number>       hash  slot → holder, and `…:bits`, a bitmap of the same slots, to find the lowest free slot
  pool:<pool>         hash  slot → holder, and `…:bits`
  waiting:<pool>      sorted set  waiter for a line of it → until when (ms) leads leave the next lines to it
  pace:<account>      the time (ms) from which the account may make requests again
  window:<pool>       list of the pool's requests within the last minute (ms), newest first
  off:<account>       the time (ms) until which the provider asked the account to wait
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from django.db import transaction

from dispatch.capacity.redis_recovery import RedisRecovery
from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import (
    LEADS,
    REDIS_ERRORS,
    CircuitOpen,
    Script,
    breaker,
    client,
    key,
    server_url,
)
from dispatch.core.redis.generation import GUARD

# `TAKE_MANY` reserves an account's pace at most this far ahead (ms), so that a single request, such as an alert's,
# never waits longer than that for bulk requests.
AHEAD_MS = 100

# Shared code that takes and releases slots. Scripts of other slices that take lines begin with it. A script that
# calls `hold` ends with `write_holds`. Fields of hashes are read and written many at once: most of the time of a
# script is that of its commands.
LEASES = """
local base = KEYS[2]
local leases = base .. ':leases'
local function slots_of(kind, id) return base .. ':' .. kind .. ':' .. id end
local function call_with(command, key, list)  -- returns the sum of the replies
  local sum = 0
  for n = 1, #list, 2000 do sum = sum + redis.call(command, key, unpack(list, n, math.min(n + 1999, #list))) end
  return sum
end
local function values_of(hash, fields)
  local found = {}
  for n = 1, #fields, 2000 do
    local part = redis.call('HMGET', hash, unpack(fields, n, math.min(n + 1999, #fields)))
    for i = 1, #part do found[n + i - 1] = part[i] end
  end
  return found
end
local unwritten = {}
local function write_later(hash, field, value)
  local list = unwritten[hash] or {}
  list[#list + 1], list[#list + 2] = field, value
  unwritten[hash] = list
end
local function write_holds()
  for hash, list in pairs(unwritten) do call_with('HSET', hash, list) end
  unwritten = {}
end
local function take(slots, slot, holder)
  write_later(slots, slot, holder)
  redis.call('SETBIT', slots .. ':bits', slot, 1)
end
local sizes = {}
local function lowest_free(slots, low, high)
  local bits = slots .. ':bits'
  if (sizes[bits] or -1) < high then  -- BITPOS does not look past the end of the string
    if redis.call('STRLEN', bits) * 8 <= high then redis.call('SETBIT', bits, high, 0) end
    sizes[bits] = high
  end
  return redis.call('BITPOS', bits, 0, low, high, 'BIT')
end
local function waiting_of(pool) return base .. ':waiting:' .. pool end
local function parts(lease) return string.match(lease, '^(%d+):(%d+):(%d+):(%d+):(%d+)$') end
local function drop_all(holders)  -- returns how many leases ended
  write_holds()
  local known, ended, used = values_of(leases, holders), {}, {}
  local function add(slots, slot, holder)
    local own = used[slots] or {numbers = {}, holders = {}}
    own.numbers[#own.numbers + 1], own.holders[#own.holders + 1] = slot, holder
    used[slots] = own
  end
  for i = 1, #holders do
    if known[i] then
      local number, line_slot, pool, pool_slot = parts(known[i])
      add(slots_of('line', number), line_slot, holders[i])
      add(slots_of('pool', pool), pool_slot, holders[i])
      ended[#ended + 1] = holders[i]
    end
  end
  for slots, own in pairs(used) do
    local current, freed = values_of(slots, own.numbers), {}
    for i = 1, #current do
      if current[i] == own.holders[i] then
        freed[#freed + 1] = own.numbers[i]
        redis.call('SETBIT', slots .. ':bits', own.numbers[i], 0)
      end
    end
    call_with('HDEL', slots, freed)
  end
  return call_with('HDEL', leases, ended)
end
local function drop(holder) return drop_all({holder}) end
local function hold(holder, number, line_slot, pool, pool_slot, taken_ms)
  take(slots_of('line', number), line_slot, holder)
  take(slots_of('pool', pool), pool_slot, holder)
  write_later(leases, holder, string.format('%s:%s:%s:%s:%s', number, line_slot, pool, pool_slot, taken_ms))
end
"""

# ARGV: clock offset, holder, pool, its concurrency, the waiter if there is no line, how long (ms) leads leave the
# pool's next lines to it (0: not at all), then per number: id, lines, number of ranges, low, high, …
# Returns {number, line slot, pool slot}, 'pool_full' or 'lines_busy'. A holder with a lease keeps it if the limits
# still allow it.
PROPOSE = Script(
    "capacity_propose",
    GUARD
    + LEASES
    + """
local holder, pool, concurrency = ARGV[2], ARGV[3], tonumber(ARGV[4])
local had = redis.call('HGET', leases, holder)
local had_number, had_line, had_pool, had_pool_slot
if had then had_number, had_line, had_pool, had_pool_slot = parts(had) end
local best, best_slot, best_free
local i = 7
while i <= #ARGV do
  local number, lines, ranges = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2])
  if had and had_number == number and had_pool == pool and tonumber(had_pool_slot) <= concurrency then
    for r = 0, ranges - 1 do
      local low, high = tonumber(ARGV[i + 3 + 2 * r]), tonumber(ARGV[i + 4 + 2 * r])
      if tonumber(had_line) >= low and tonumber(had_line) <= high then
        return {tonumber(had_number), tonumber(had_line), tonumber(had_pool_slot)}
      end
    end
    drop(holder)
    had = nil
  end
  local slots = slots_of('line', number)
  local headroom = lines - redis.call('HLEN', slots)
  if headroom > 0 and (not best or headroom > best_free) then
    for r = 0, ranges - 1 do
      local slot = lowest_free(slots, ARGV[i + 3 + 2 * r], tonumber(ARGV[i + 4 + 2 * r]))
      if slot >= 0 then
        best, best_slot, best_free = number, slot, headroom
        break
      end
    end
  end
  i = i + 3 + 2 * ranges
end
if had then drop(holder) end
local in_pool = slots_of('pool', pool)
local pool_slot = -1
if redis.call('HLEN', in_pool) < concurrency then pool_slot = lowest_free(in_pool, 1, concurrency) end
if pool_slot < 0 or not best then
  local now, wait_ms = now_ms(ARGV[1]), tonumber(ARGV[6])
  if wait_ms > 0 then
    redis.call('ZREMRANGEBYSCORE', waiting_of(pool), '-inf', string.format('%.0f', now))
    redis.call('ZADD', waiting_of(pool), string.format('%.0f', now + wait_ms), ARGV[5])
    redis.call('PEXPIRE', waiting_of(pool), 2 * wait_ms)
  end
  return pool_slot < 0 and 'pool_full' or 'lines_busy'
end
redis.call('ZREM', waiting_of(pool), ARGV[5])
hold(holder, best, best_slot, pool, pool_slot, string.format('%.0f', now_ms(ARGV[1])))
write_holds()
return {tonumber(best), best_slot, pool_slot}
""",
)

# ARGV: holders. Returns how many leases ended. A holder without a lease is ignored.
RELEASE = Script(
    "capacity_release",
    GUARD + LEASES + "return drop_all(ARGV)",
)

# ARGV: clock offset, then per open call: holder, number, line slot, pool, pool slot. Any other recorded holder of
# one of these slots loses it. Returns how many leases were changed.
ADOPT = Script(
    "capacity_adopt",
    LEASES
    + """
local now = string.format('%.0f', now_ms(ARGV[1]))
local changed = 0
for i = 2, #ARGV, 5 do
  local holder, number, line_slot, pool, pool_slot = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local wanted = string.format('%s:%s:%s:%s:', number, line_slot, pool, pool_slot)
  local had = redis.call('HGET', leases, holder)
  if not had or string.sub(had, 1, #wanted) ~= wanted then
    drop(holder)
    local others = {redis.call('HGET', slots_of('line', number), line_slot),
                    redis.call('HGET', slots_of('pool', pool), pool_slot)}
    for o = 1, 2 do if others[o] then drop(others[o]) end end
    hold(holder, number, line_slot, pool, pool_slot, now)
    write_holds()
    changed = changed + 1
  end
end
return changed
""",
)

# ARGV: pairs of a holder and its lease as it was read. Ends the leases that are unchanged, and returns how many.
END_STALE = Script(
    "capacity_forget",
    GUARD
    + LEASES
    + """
local ended = 0
for i = 1, #ARGV, 2 do
  if redis.call('HGET', leases, ARGV[i]) == ARGV[i + 1] then ended = ended + drop(ARGV[i]) end
end
return ended
""",
)

# ARGV: clock offset, account, ms between its requests, pool, its rate per minute (0: none). Returns 0 and counts
# the request, or the ms to wait and counts nothing.
TAKE = Script(
    "capacity_take",
    GUARD
    + f"local AHEAD = {AHEAD_MS}\n"
    + """
local now, interval, rate = now_ms(ARGV[1]), tonumber(ARGV[3]), tonumber(ARGV[5])
local pace, window = KEYS[2] .. ':pace:' .. ARGV[2], KEYS[2] .. ':window:' .. ARGV[4]
-- a pace further ahead than any reservation was written by another clock
local wait = math.min(interval + AHEAD, tonumber(redis.call('GET', pace) or 0) - now)
if rate > 0 then
  local oldest = redis.call('LINDEX', window, rate - 1)
  if oldest then wait = math.max(wait, math.min(60000, tonumber(oldest) + 60000 - now)) end
end
if wait > 0 then return math.ceil(wait) end
redis.call('SET', pace, string.format('%.0f', math.ceil(now + interval)), 'PX', math.ceil(interval) + 1000)
-- also without a rate, because a rate may be set at any moment; at most ten thousand are kept
redis.call('LPUSH', window, string.format('%.0f', now))
redis.call('LTRIM', window, 0, math.max(rate, 10000) - 1)
redis.call('PEXPIRE', window, 61000)
return 0
""",
)

# `paced`: how many requests an account may make from now until AHEAD ms ahead, and from what time (ms).
# `in_window`: the same for a pool and its rate per minute.
PACE = f"""
local AHEAD = {AHEAD_MS}
local function paced(account, interval, now)
  local off = tonumber(redis.call('GET', KEYS[2] .. ':off:' .. account) or 0)
  if off > now then return 0, off end
  local free_at = tonumber(redis.call('GET', KEYS[2] .. ':pace:' .. account) or 0)
  free_at = math.max(now, math.min(free_at, now + interval + AHEAD))
  if free_at > now + AHEAD then return 0, free_at end
  return math.floor((now + AHEAD - free_at) / interval) + 1, free_at
end
local function in_window(pool, rate, now)
  if rate == 0 then return 1e9, now end
  local window = KEYS[2] .. ':window:' .. pool
  local oldest = tonumber(redis.call('LINDEX', window, rate - 1) or 0)
  if oldest + 60000 > now then return 0, oldest + 60000 end
  local low, high = 0, math.min(rate, redis.call('LLEN', window))
  while low < high do  -- find the first request that is older than a minute
    local middle = math.floor((low + high) / 2)
    if tonumber(redis.call('LINDEX', window, middle)) + 60000 > now then low = middle + 1 else high = middle end
  end
  return rate - low, now
end
"""

# ARGV: clock offset, account, ms between its requests, pool, its rate per minute (0: none), number of requests
# wanted; then optionally, for each request, the ms from now before which it is not due, in ascending order.
# Returns {number of requests counted, ms until each request, as text}. Without the optional arguments, it returns
# only the ms until the first request; the others follow at the account's interval.
TAKE_MANY = Script(
    "capacity_take_many",
    GUARD
    + PACE
    + """
local now, account, interval = now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local pool, rate, wanted = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local by_pace, free_at = paced(account, interval, now)
local by_rate = in_window(pool, rate, now)
local taken = math.min(wanted, by_pace, by_rate)
if taken <= 0 then return {0, '0'} end
local window, moment = KEYS[2] .. ':window:' .. pool, string.format('%.0f', math.ceil(free_at))
local moments, answer, last = {}, {taken, string.format('%.3f', free_at - now)}, free_at + (taken - 1) * interval
if ARGV[7] then
  last = free_at - interval
  for i = 1, taken do
    last = math.max(last + interval, now + tonumber(ARGV[6 + i]))
    moments[i], answer[1 + i] = string.format('%.0f', math.ceil(last)), string.format('%.3f', last - now)
  end
else
  for i = 1, taken do moments[i] = moment end
end
redis.call('SET', KEYS[2] .. ':pace:' .. account, string.format('%.3f', last + interval),
           'PX', math.ceil(interval) + AHEAD + 1000)
for i = 1, taken, 1000 do redis.call('LPUSH', window, unpack(moments, i, math.min(i + 999, taken))) end
redis.call('LTRIM', window, 0, math.max(rate, 10000) - 1)
redis.call('PEXPIRE', window, 61000)
return answer
""",
)

# ARGV: clock offset, account, ms. The provider asked the account to wait. Its leads wait; urgent requests may
# still be tried.
PAUSE_ACCOUNT = Script(
    "capacity_hold_off",
    GUARD
    + """
redis.call('SET', KEYS[2] .. ':off:' .. ARGV[2], string.format('%.0f', now_ms(ARGV[1]) + ARGV[3]), 'PX', ARGV[3])
return 1
""",
)

# ARGV: "pace", account, the time (ms) from which it may make requests; or "window", pool, its requests (ms),
# oldest first. Writes the last minute's requests, which were read from the rows of the calls.
RESTORE_RATE = Script(
    "capacity_restore_rate",
    """
local name = KEYS[2] .. ':' .. ARGV[1] .. ':' .. ARGV[2]
if ARGV[1] == 'pace' then
  if tonumber(redis.call('GET', name) or 0) >= tonumber(ARGV[3]) then return 0 end
  redis.call('SET', name, ARGV[3], 'PX', 120000)
  return 1
end
-- requests that are listed already, because this ran before, are not added again
local all, listed = redis.call('LRANGE', name, 0, -1), {}
for i = 1, #all do listed[all[i]] = (listed[all[i]] or 0) + 1 end
for i = 3, #ARGV do
  local left = listed[ARGV[i]] or 0
  if left > 0 then listed[ARGV[i]] = left - 1 else all[#all + 1] = ARGV[i] end
end
table.sort(all, function(a, b) return tonumber(a) > tonumber(b) end)
redis.call('DEL', name)
for i = 1, #all do redis.call('RPUSH', name, all[i]) end
redis.call('PEXPIRE', name, 61000)
return 1
""",
)


log = structlog.get_logger(__name__)

_recovery: RedisRecovery | None = None


def base_key() -> str:
    """Return the prefix of capacity's keys."""
    return key("capacity")


def on_redis_recovery(catch_up: Callable[[datetime], None]) -> None:
    """Register the function that updates Redis with the decisions that Postgres made during an outage."""
    global _recovery
    _recovery = RedisRecovery(catch_up)


def is_recovering() -> bool:
    """Return whether this process decides without Redis at present."""
    return _recovery is not None and _recovery.is_pending


def run_or_none(script: Script, *args: Any, since: datetime | None = None) -> Any | None:
    """Return the script's reply, or None if Redis is unavailable, incomplete or not up to date yet.

    If None, the caller uses Postgres instead. Callers hold transactions open: nothing is rebuilt here. Redis later
    gets the decisions from `since` on: the time that the caller records of this one, if it has read the clock.
    """
    since = since or clock.now()
    if _recovery is not None and _recovery.is_pending:
        _recovery.start(since)
        return None
    try:
        answer = run_script(script, args)
        if answer != generation.NOT_READY:
            return answer
    except REDIS_ERRORS as error:
        if not isinstance(error, CircuitOpen):
            log.warning("line_scripts_unavailable", script=script.name, error=str(error))
    if _recovery is not None:
        _recovery.start(since)
    return None


def add_after_commit(since: datetime) -> None:
    """Add the decision of this transaction, made without Redis, to Redis after the commit."""
    if _recovery is not None:
        transaction.on_commit(partial(_recovery.add_committed, since), robust=True)


def run_script(script: Script, args: Sequence[Any]) -> Any:
    """Return the script's raw reply. Raises any of REDIS_ERRORS."""
    return script(keys=[generation.key_name(), base_key()], args=list(args), client=client(LEADS))


def offset_ms() -> int:
    """Return the milliseconds that scripts add to the time of Redis, so that both clocks agree in tests."""
    return clock.offset_ms()


def reset() -> None:
    """Reset the outage state, for tests that start and stop Redis."""
    breaker(server_url(LEADS)).reset()
    if _recovery is not None:
        _recovery.reset()
