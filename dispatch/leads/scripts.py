"""The Lua scripts over the schedule, the rooms and who holds what. Each is one atomic step and answers NOT_READY
while the generation key is missing.

KEYS: the generation, capacity's base, ours = key("leads"). Below ours:
  schedule          sorted set  member → the moment it is due (Unix ms)
  room:<pool>       sorted set  member → the moment it was due: what may be called now
  rooms             set of the pools whose room may hold something
  held:<worker>     sorted set  member → the moment it was due: taken out of a room and not settled
  workers           sorted set  worker → its last heartbeat (ms)
  swept             the generation in which the whole backlog was last compared with the schedule
A member is "<pool>:<lead>:<the attempt that is due>": one of an earlier attempt is known for stale.
"""

from __future__ import annotations

from dispatch.capacity.scripts import LEASES, PACE
from dispatch.core.generation import GUARD
from dispatch.core.redis import Script

_NAMES = """
local ours = KEYS[3]
local schedule, rooms, workers = ours .. ':schedule', ours .. ':rooms', ours .. ':workers'
local function room_of(member) return ours .. ':room:' .. string.match(member, '^(%d+):') end
local function head()
  local first = redis.call('ZRANGE', schedule, 0, 0, 'WITHSCORES')
  return tonumber(first[2])
end
-- Asks the promoter to look again when something is due before all that it knew of.
local function wake_if_earlier(before, channel, loop)
  local now_first = head()
  if now_first and (not before or now_first < before) then redis.call('PUBLISH', channel, loop) end
end
"""

# ARGV: wake channel, promoter's name, then pairs of due moment (ms) and member. A member that is there already,
# due at another time, is moved. Answers how many are new.
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

# ARGV: wake channel, promoter's name, due moments (ms) and members in turn, as one text with blanks between them:
# hundreds are compared every second, and a text costs the process that asks nearly nothing. Adds only what is
# nowhere: neither scheduled, nor in its room, nor held by a worker. Answers how many those are.
SCHEDULE_MISSING = Script(
    "leads_schedule_missing",
    GUARD
    + _NAMES
    + """
local before, added = head(), 0
local holders = redis.call('ZRANGE', workers, 0, -1)
local function held(member)
  for i = 1, #holders do
    if redis.call('ZSCORE', ours .. ':held:' .. holders[i], member) then return true end
  end
  return false
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

# ARGV: members. Takes them out of the schedule and the rooms; answers how many were there.
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

# ARGV: clock offset, how many at most, the dialers' bell, ms. Moves what is due within so many ms into its room,
# the longest due first. Answers {how many, µs until it is the next one's turn (-1: nothing is there)}.
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
    local found = by_pool[pool]
    if not found then found = {}; by_pool[pool] = found end
    found[#found + 1] = due[i + 1]
    found[#found + 1] = due[i]
  end
  for pool, found in pairs(by_pool) do
    for i = 1, #found, 2000 do
      redis.call('ZADD', ours .. ':room:' .. pool, unpack(found, i, math.min(i + 1999, #found)))
    end
    redis.call('SADD', rooms, pool)
  end
  redis.call('ZREMRANGEBYRANK', schedule, 0, count - 1)
  redis.call('PUBLISH', ARGV[3], count == 1 and 'one:' .. next(by_pool) or 'due')
end
local first, time = head(), redis.call('TIME')
local exactly = tonumber(time[1]) * 1000 + tonumber(time[2]) / 1000 + ARGV[1] + ARGV[4]
return {count, first and math.max(0, math.ceil((first - exactly) * 1000)) or -1}
""",
)

# ARGV: clock offset, worker, how many at most, then what `PoolLimits.arguments` says: pool, concurrency, rate
# per minute, per number: id, account, ms between requests, lines, how many ranges, their ends.
# Pairs what is ready in the pool's room with free lines. Answers {why it stopped, ms after which it is worth
# asking again, then per pair: member, due moment, number, line slot, pool slot}. Why: '' (as many as were wanted),
# empty, pool_full, lines_busy, rate.
PAIR = Script(
    "leads_pair",
    GUARD
    + LEASES
    + PACE
    + _NAMES
    + """
local now, worker, most = now_ms(ARGV[1]), ARGV[2], tonumber(ARGV[3])
local pool, concurrency, rate = ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
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
local pool_room = concurrency - redis.call('HLEN', in_pool)
local numbers, accounts, rate_wait = {}, {}, nil
local i = 7
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
    best.free = 0  -- what is free there is reserved for others
  end
end

local answer, held = {'', 0}, {}
local taken_ms = string.format('%.0f', now)
for n = 1, wanted do
  local first = redis.call('ZPOPMIN', room)
  local member, due = first[1], first[2]
  local holder = 'lead:' .. string.match(member, ':(.+)$')
  local number, slot, pool_slot
  local had = redis.call('HGET', leases, holder)  -- of a worker that died with it, or of its call
  local had_pool
  if had then number, slot, had_pool, pool_slot = parts(had) end
  if had_pool ~= pool then
    local why, wait
    pool_slot = pool_room > 0 and lowest_free(in_pool, 1, concurrency) or -1
    if pool_slot < 0 then
      why, wait = 'pool_full', 1000
    else
      number, slot = take_line()
      if not number and rate_wait then why, wait = 'rate', rate_wait
      elseif not number then why, wait = 'lines_busy', 1000 end
    end
    if why then
      redis.call('ZADD', room, due, member)
      answer[1], answer[2] = why, wait
      break
    end
    if had then drop(holder) end  -- the line of its former pool, kept until there is one of this
    hold(holder, number, slot, pool, pool_slot, taken_ms)
    pool_room = pool_room - 1
  end
  held[#held + 1] = due
  held[#held + 1] = member
  local at = #answer
  answer[at + 1], answer[at + 2], answer[at + 3] = member, due, number
  answer[at + 4], answer[at + 5] = slot, pool_slot
end
for n = 1, #held, 2000 do
  redis.call('ZADD', ours .. ':held:' .. worker, unpack(held, n, math.min(n + 1999, #held)))
end
if #held > 0 then redis.call('ZADD', workers, 'NX', taken_ms, worker) end
if answer[1] == '' and wanted == ready then
  redis.call('SREM', rooms, pool)
  answer[1] = 'empty'
end
return answer
""",
)

# ARGV: wake channel, promoter's name, worker, then fours of member, what becomes of it, a moment (ms), and the
# member that it goes on as. What: "called" (its line belongs to its call now), "gone" (its line is free),
# "again" (its line is free; it is ready still), "later" (its line is free; due at the moment).
SETTLE = Script(
    "leads_settle",
    GUARD
    + LEASES
    + _NAMES
    + """
local before, held = head(), ours .. ':held:' .. ARGV[3]
local members = {}
for i = 4, #ARGV, 4 do
  local member, what = ARGV[i], ARGV[i + 1]
  members[#members + 1] = member
  if what ~= 'called' then
    drop('lead:' .. string.match(member, ':(.+)$'))
    if what == 'again' then
      redis.call('ZADD', room_of(ARGV[i + 3]), ARGV[i + 2], ARGV[i + 3])
      redis.call('SADD', rooms, string.match(ARGV[i + 3], '^(%d+):'))
    elseif what == 'later' then
      redis.call('ZADD', schedule, ARGV[i + 2], ARGV[i + 3])
    end
  end
end
for i = 1, #members, 2000 do redis.call('ZREM', held, unpack(members, i, math.min(i + 1999, #members))) end
wake_if_earlier(before, ARGV[1], ARGV[2])
return #members
""",
)

# ARGV: clock offset, worker.
BEAT = Script(
    "leads_beat",
    GUARD + _NAMES + "redis.call('ZADD', workers, string.format('%.0f', now_ms(ARGV[1])), ARGV[2])\nreturn 1",
)

# ARGV: clock offset, ms without a heartbeat after which a worker is dead, the dialers' bell. What a dead worker
# held is ready again; its lines stay with whoever takes it next. Answers {dead workers, leads put back}.
BURY = Script(
    "leads_bury",
    GUARD
    + _NAMES
    + """
local dead = redis.call('ZRANGE', workers, '-inf', string.format('%.0f', now_ms(ARGV[1]) - ARGV[2]), 'BYSCORE')
local back = 0
for i = 1, #dead do
  local held = ours .. ':held:' .. dead[i]
  local found = redis.call('ZRANGE', held, 0, -1, 'WITHSCORES')
  for n = 1, #found, 2 do
    redis.call('ZADD', room_of(found[n]), found[n + 1], found[n])
    redis.call('SADD', rooms, string.match(found[n], '^(%d+):'))
    back = back + 1
  end
  redis.call('DEL', held)
  redis.call('ZREM', workers, dead[i])
end
if back > 0 then redis.call('PUBLISH', ARGV[3], 'due') end
return {#dead, back}
""",
)

# ARGV: worker. A dialer that ends in order; what it still holds is put back when it is buried. Answers how much.
LEAVE = Script(
    "leads_leave",
    GUARD
    + _NAMES
    + """
local held = redis.call('ZCARD', ours .. ':held:' .. ARGV[1])
if held == 0 then redis.call('ZREM', workers, ARGV[1]) else redis.call('ZADD', workers, 0, ARGV[1]) end
return held
""",
)
