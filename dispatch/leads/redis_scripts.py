"""Define the Lua scripts over the schedule, the ready queues and the reservations.

Each script is one atomic step, and returns NOT_READY while the generation key is missing.

KEYS: the generation, capacity's base, ours = key("leads"). Below ours:
  schedule          sorted set  member → its due time (Unix ms)
  room:<pool>       sorted set  member → its due time: the ready queue of the pool, which may be called now
  rooms             set of the pools whose ready queue may contain members, without those in `blocked`
  blocked           sorted set  pool without a free line → when it is checked again (ms), unless a line is freed
  held:<batch>      sorted set  member → its due time: reserved and not completed. A batch is "<worker>:<id>"
  batches           sorted set  batch → the end of its lease (ms). Members not completed by then are ready again,
                    whether the worker is alive or not
  workers           sorted set  worker → its last heartbeat (ms), for metrics
  swept             the generation in which the whole backlog was last compared with the schedule
  spread            how the last rebuild spread the overdue leads: start (ms), window (ms) and number

A member is "<pool>:<lead>:<attempt that is due>", so that a stale attempt is recognized.

Each script may run twice, or run although its caller never learns of it, because a reply may be lost.
"""

from __future__ import annotations

from dispatch.capacity.redis_scripts import LEASES, PACE
from dispatch.core.redis.client import Script
from dispatch.core.redis.generation import GUARD

_NAMES = """
local ours = KEYS[3]
local schedule, rooms, workers = ours .. ':schedule', ours .. ':rooms', ours .. ':workers'
local batches, blocked = ours .. ':batches', ours .. ':blocked'
local function room_of(member) return ours .. ':room:' .. string.match(member, '^(%d+):') end
local function open_room(pool)
  if not redis.call('ZSCORE', blocked, pool) then redis.call('SADD', rooms, pool) end
end
local function unblock(pool)
  if redis.call('ZREM', blocked, pool) == 1 then redis.call('SADD', rooms, pool) end
end
local function held_by(batch) return ours .. ':held:' .. batch end
-- Requeue the members of a batch. The leads keep their lines, for the next dialer that reserves them.
local function requeue(batch)
  local members = redis.call('ZRANGE', held_by(batch), 0, -1, 'WITHSCORES')
  for n = 1, #members, 2 do
    redis.call('ZADD', room_of(members[n]), members[n + 1], members[n])
    open_room(string.match(members[n], '^(%d+):'))
  end
  redis.call('DEL', held_by(batch))
  redis.call('ZREM', batches, batch)
  return #members / 2
end
local function head()
  local first = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end
-- Wake the promoter if the first due time is now earlier than before.
local function wake_if_earlier(before, channel, loop)
  local now_first = head()
  if now_first and (not before or now_first < before) then redis.call('PUBLISH', channel, loop) end
end
"""

# ARGV: wake channel, promoter's name, then pairs of due time (ms) and member. Moves members that are scheduled for
# another time. Returns how many are new.
SCHEDULE = Script(
    "leads_schedule",
    GUARD
    + _NAMES
    + """
local before, added = head(), 0
for i = 3, #ARGV, 2000 do
  added = added + redis.call('ZADD', schedule, unpack(ARGV, i, math.min(i + 1999, #ARGV)))
end
wake_if_earlier(before, ARGV[1], ARGV[2])
return added
""",
)

# ARGV: wake channel, promoter's name, due times (ms) and members alternately, as one text separated by blanks.
# (Hundreds are compared every second, and a single text costs the caller almost nothing.) Adds only members that
# are missing everywhere: not scheduled, not ready, not held by a batch. Returns how many were added.
SCHEDULE_MISSING = Script(
    "leads_schedule_missing",
    GUARD
    + _NAMES
    + """
local before, added = head(), 0
local all_held
local function held(member)
  if not all_held then
    all_held = {}
    local known = redis.call('ZRANGE', batches, 0, -1)
    for i = 1, #known do
      local members = redis.call('ZRANGE', held_by(known[i]), 0, -1)
      for n = 1, #members do all_held[members[n]] = true end
    end
  end
  return all_held[member]
end
for due, member in string.gmatch(ARGV[3], '(%S+) (%S+)') do
  if not redis.call('ZSCORE', schedule, member) and not redis.call('ZSCORE', room_of(member), member)
     and not held(member) then
    redis.call('ZADD', schedule, due, member)
    added = added + 1
  end
end
wake_if_earlier(before, ARGV[1], ARGV[2])
return added
""",
)

# ARGV: members. Removes them from the schedule and the ready queues, and returns how many were removed.
UNSCHEDULE = Script(
    "leads_unschedule",
    GUARD
    + _NAMES
    + """
local gone = 0
for i = 1, #ARGV do
  gone = gone + redis.call('ZREM', schedule, ARGV[i]) + redis.call('ZREM', room_of(ARGV[i]), ARGV[i])
end
return gone
""",
)

# ARGV: clock offset, maximum count, the dialers' wakeup channel, ms. Moves the members that are due within that
# many ms to their ready queues, longest due first. Returns {count, µs until the next is due (-1: none is
# scheduled)}.
PROMOTE = Script(
    "leads_promote",
    GUARD
    + _NAMES
    + """
local until_ms = now_ms(ARGV[1]) + ARGV[4]
local due = redis.call('ZRANGE', schedule, '-inf', string.format('%.0f', until_ms), 'BYSCORE',
                       'LIMIT', 0, ARGV[2], 'WITHSCORES')
local count = #due / 2
if count > 0 then
  local by_pool = {}
  for i = 1, #due, 2 do
    local pool = string.match(due[i], '^(%d+):')
    local entries = by_pool[pool]
    if not entries then entries = {}; by_pool[pool] = entries end
    entries[#entries + 1] = due[i + 1]
    entries[#entries + 1] = due[i]
  end
  for pool, entries in pairs(by_pool) do
    for i = 1, #entries, 2000 do
      redis.call('ZADD', ours .. ':room:' .. pool, unpack(entries, i, math.min(i + 1999, #entries)))
    end
    open_room(pool)
  end
  redis.call('ZREMRANGEBYRANK', schedule, 0, count - 1)
  -- A lead whose pool has no free line wakes nobody.
  local pool = next(by_pool)
  if count > 1 then redis.call('PUBLISH', ARGV[3], 'due')
  elseif not redis.call('ZSCORE', blocked, pool) then redis.call('PUBLISH', ARGV[3], 'one:' .. pool) end
end
local first, time = head(), redis.call('TIME')
local exactly = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000 + ARGV[1] + ARGV[4]
return {count, first and math.max(0, math.ceil((first - exactly) * 1000)) or -1}
""",
)

# ARGV: clock offset. Returns the pools whose ready queues may contain members, without those without a free line.
READY_POOLS = Script(
    "leads_ready_pools",
    GUARD
    + _NAMES
    + """
local now = string.format('%.0f', now_ms(ARGV[1]))
local again = redis.call('ZRANGE', blocked, '-inf', now, 'BYSCORE')
for i = 1, #again do unblock(again[i]) end
return redis.call('SMEMBERS', rooms)
""",
)

# ARGV: the dialers' wakeup channel, then pools. Lines of these pools have become free. Wakes dialers only for
# pools with ready leads: each call that ends frees a line, and most often no lead waits for it.
LINES_FREED = Script(
    "leads_lines_freed",
    GUARD
    + _NAMES
    + """
for i = 2, #ARGV do
  unblock(ARGV[i])
  if redis.call('EXISTS', ours .. ':room:' .. ARGV[i]) == 1 then
    redis.call('PUBLISH', ARGV[1], 'line:' .. ARGV[i])
  end
end
return 1
""",
)

# ARGV: clock offset, batch, lease (ms), maximum count, ms until a pool without a free line is checked again, then
# the result of `PoolLimits.arguments`: pool, concurrency, rate per minute, and per number: id, account, ms between
# requests, lines, number of ranges, their ends. Pairs the ready members of the pool with free lines. Returns {why
# it stopped, ms until a retry makes sense, then per pair: member, due time, number, line slot, pool slot}. Why it
# stopped: '' (as many as requested), empty, pool_full, lines_busy (also while an offer or alert waits for the next
# line of the pool), rate. If repeated for the same batch, it requeues the members that it reserved, and reserves
# them again with the same lines.
RESERVE = Script(
    "leads_pair",
    GUARD
    + LEASES
    + PACE
    + _NAMES
    + """
local now, batch, lease_ms, most = now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local pool, concurrency, rate = ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
requeue(batch)
local room = ours .. ':room:' .. pool
local ready = redis.call('ZCARD', room)
if ready == 0 then
  redis.call('SREM', rooms, pool)
  return {'empty', 0}
end
local by_rate, rate_at = in_window(pool, rate, now)
if by_rate <= 0 then return {'rate', math.ceil(rate_at - now)} end
local wanted = math.min(most, ready, by_rate)

local in_pool = slots_of('pool', pool)
local pool_headroom = concurrency - redis.call('HLEN', in_pool)
-- an offer or alert waits for the next line of the pool
local is_awaited = redis.call('ZCOUNT', waiting_of(pool), string.format('%.0f', now), '+inf') > 0
local numbers, by_id, accounts, rate_wait = {}, {}, {}, nil
local i = 9
while i <= #ARGV do
  local ranges = {}
  for r = 0, tonumber(ARGV[i + 4]) - 1 do ranges[r + 1] = {ARGV[i + 5 + 2 * r], tonumber(ARGV[i + 6 + 2 * r])} end
  local slots = slots_of('line', ARGV[i])
  local account = ARGV[i + 1]
  if not accounts[account] then
    local allowed, free_at = paced(account, tonumber(ARGV[i + 2]), now)
    accounts[account] = {left = allowed, wait = math.ceil(free_at - now)}
  end
  numbers[#numbers + 1] = {
    id = ARGV[i], slots = slots, ranges = ranges, free = tonumber(ARGV[i + 3]) - redis.call('HLEN', slots),
    account = accounts[account]
  }
  by_id[ARGV[i]] = numbers[#numbers]
  i = i + 5 + 2 * #ranges
end

local function take_line()
  while true do
    local best
    for n = 1, #numbers do
      local number = numbers[n]
      if number.free > 0 then
        if number.account.left <= 0 then
          rate_wait = math.min(rate_wait or 1000, math.max(1, number.account.wait))
        elseif not best or number.free > best.free then
          best = number
        end
      end
    end
    if not best then return nil end
    for r = 1, #best.ranges do
      local slot = lowest_free(best.slots, best.ranges[r][1], best.ranges[r][2])
      if slot >= 0 then
        best.free = best.free - 1
        best.account.left = best.account.left - 1
        return best.id, slot
      end
    end
    best.free = 0  -- its free lines are reserved for other purposes
  end
end

local function is_within(number, slot, pool_slot)
  if not number or tonumber(pool_slot) > concurrency then return false end
  slot = tonumber(slot)
  for r = 1, #number.ranges do
    if slot >= tonumber(number.ranges[r][1]) and slot <= number.ranges[r][2] then return true end
  end
  return false
end
local function drop_own(holder, number)
  drop(holder)
  pool_headroom = pool_headroom + 1
  if number then number.free = number.free + 1 end
end

-- A lead that already has a line, from a batch whose lease has ended or from its call, keeps the line if the
-- current limits allow it.
local ready_now, holders, leased = redis.call('ZRANGE', room, 0, wanted - 1, 'WITHSCORES'), {}, {}
for n = 1, wanted do holders[n] = 'lead:' .. string.match(ready_now[2 * n - 1], ':(.+)$') end
local former = values_of(leases, holders)
for n = 1, wanted do
  local holder, had = holders[n], former[n]
  if had then
    local number, slot, had_pool, pool_slot = parts(had)
    if had_pool == pool and not is_within(by_id[number], slot, pool_slot) then
      drop_own(holder, by_id[number])
    else
      leased[n] = {number = number, slot = slot, pool = had_pool, pool_slot = pool_slot}
    end
  end
end

local answer, held = {'', 0}, {}
local taken_ms = string.format('%.0f', now)
for n = 1, wanted do
  local member, due = ready_now[2 * n - 1], ready_now[2 * n]
  local holder = holders[n]
  local had, number, slot, pool_slot = leased[n], nil, nil, nil
  if had and had.pool == pool and (pool_headroom < 0 or by_id[had.number].free < 0) then  -- above the limit
    drop_own(holder, by_id[had.number])
    had = nil
  end
  if had and had.pool == pool then
    number, slot, pool_slot = had.number, had.slot, had.pool_slot
  else
    local why, wait
    pool_slot = pool_headroom > 0 and lowest_free(in_pool, 1, concurrency) or -1
    if pool_slot < 0 then
      why, wait = 'pool_full', 1000
    elseif is_awaited then
      why, wait = 'lines_busy', 1000
    else
      number, slot = take_line()
      if not number and rate_wait then why, wait = 'rate', rate_wait
      elseif not number then why, wait = 'lines_busy', 1000 end
    end
    if why then
      answer[1], answer[2] = why, wait
      break
    end
    if had then drop(holder) end  -- the line of its former pool, kept until this pool has one
    hold(holder, number, slot, pool, pool_slot, taken_ms)
    pool_headroom = pool_headroom - 1
  end
  held[#held + 1] = due
  held[#held + 1] = member
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = member, due, number
  answer[at + 4], answer[at + 5] = slot, pool_slot
end
write_holds()
if #held > 0 then redis.call('ZPOPMIN', room, #held / 2) end
call_with('ZADD', held_by(batch), held)
if #held > 0 then redis.call('ZADD', batches, string.format('%.0f', now + lease_ms), batch) end
if answer[1] == '' and wanted == ready then
  redis.call('SREM', rooms, pool)
  answer[1] = 'empty'
end
if #held > 0 then
  unblock(pool)
elseif answer[1] == 'pool_full' or answer[1] == 'lines_busy' then
  redis.call('SREM', rooms, pool)
  redis.call('ZADD', blocked, string.format('%.0f', now + ARGV[5]), pool)
end
return answer
""",
)

# ARGV: clock offset, wake channel, promoter's name, ms, then per member five values: batch, member, outcome, due
# time (ms), and the member that replaces it. Outcomes: "called" (the line now belongs to the call), "gone" (the
# line is released), "again" (the line is released; still ready), "later" (the line is released; due at the due
# time), "early" (the same, because the lead is not due by the worker's clock; the due time is in ms from now, so
# that it is not due again at once if that clock is behind), "asked" (a pre-check is pending: the batch keeps it,
# and its lease is renewed for that many ms). A member that its batch no longer holds is left unchanged: the lease
# has ended, and another worker decides.
COMPLETE = Script(
    "leads_settle",
    GUARD
    + LEASES
    + _NAMES
    + """
local before, settled, seen = head(), 0, {}
local now = now_ms(ARGV[1])
local until_ms = string.format('%.0f', now + ARGV[4])
for i = 5, #ARGV, 5 do
  local batch, member, outcome = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  if outcome == 'asked' then
    if redis.call('ZSCORE', batches, batch) then redis.call('ZADD', batches, until_ms, batch) end
  elseif redis.call('ZREM', held_by(batch), member) == 1 then
    seen[batch] = true
    settled = settled + 1
    if outcome ~= 'called' then
      drop('lead:' .. string.match(member, ':(.+)$'))
      if outcome == 'again' then
        redis.call('ZADD', room_of(ARGV[i + 4]), ARGV[i + 3], ARGV[i + 4])
        open_room(string.match(ARGV[i + 4], '^(%d+):'))
      elseif outcome == 'later' then
        redis.call('ZADD', schedule, ARGV[i + 3], ARGV[i + 4])
      elseif outcome == 'early' then
        redis.call('ZADD', schedule, string.format('%.0f', now + ARGV[i + 3]), ARGV[i + 4])
      end
    end
  end
end
for batch in pairs(seen) do
  if redis.call('EXISTS', held_by(batch)) == 0 then redis.call('ZREM', batches, batch) end
end
wake_if_earlier(before, ARGV[2], ARGV[3])
return settled
""",
)

# ARGV: clock offset, worker.
HEARTBEAT = Script(
    "leads_beat",
    GUARD + _NAMES + "redis.call('ZADD', workers, string.format('%.0f', now_ms(ARGV[1])), ARGV[2])\nreturn 1",
)

# ARGV: clock offset, ms without a heartbeat after which a worker is dead, the dialers' wakeup channel. Requeues
# the members of batches whose lease has ended. Returns {number of dead workers, number of leads requeued}.
REAP = Script(
    "leads_reap",
    GUARD
    + _NAMES
    + """
local now = now_ms(ARGV[1])
local lapsed = redis.call('ZRANGE', batches, '-inf', string.format('%.0f', now), 'BYSCORE')
local back = 0
for i = 1, #lapsed do back = back + requeue(lapsed[i]) end
local dead = redis.call('ZREMRANGEBYSCORE', workers, '-inf', string.format('%.0f', now - ARGV[2]))
if back > 0 then redis.call('PUBLISH', ARGV[3], 'due') end
return {dead, back}
""",
)

# ARGV: worker, the dialers' wakeup channel. Deregisters a dialer that stops in an orderly way: the leads that it
# still holds are ready again. Returns how many.
DEREGISTER = Script(
    "leads_leave",
    GUARD
    + _NAMES
    + """
redis.call('ZREM', workers, ARGV[1])
local known, back = redis.call('ZRANGE', batches, 0, -1), 0
for i = 1, #known do
  if string.sub(known[i], 1, #ARGV[1] + 1) == ARGV[1] .. ':' then back = back + requeue(known[i]) end
end
if back > 0 then redis.call('PUBLISH', ARGV[2], 'due') end
-- A dialer of an earlier version does not know the blocked pools.
local waiting = redis.call('ZRANGE', blocked, 0, -1)
for i = 1, #waiting do unblock(waiting[i]) end
return back
""",
)
