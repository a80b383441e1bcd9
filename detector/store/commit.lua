-- Commits one shard: detector state, incidents and what is owed to receivers, all or nothing.
--
-- KEYS  1 fence  2 state  3 incidents  4 revisions  5 ends  6 actions  7 receivers
--       8.. for each notice in order: its lane, its receiver's due set
-- ARGV  1 fence of the caller, "" for none
--       2 n, then n times: field of the state hash, blob        (n = 0 leaves the state)
--       . n, then n times: incident id, revision, "1" if live, blob
--       . n, then n times: receiver, lane, incident id, revision, time (ms), blob
--       . n, then n times: blob of an action that was carried out
-- Reply {"stale"} or {"ok", number of notices pushed, id of each accepted incident...}
--
-- A failing command does not undo the ones before it, so everything that can fail is tried
-- by reading before the first write: a key of a foreign type refuses the whole commit.

local cursor = 1
local function take()
  cursor = cursor + 1
  return ARGV[cursor]
end

if ARGV[1] ~= '' and redis.call('GET', KEYS[1]) ~= ARGV[1] then
  return {'stale'}
end
redis.call('HLEN', KEYS[2])
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('LLEN', KEYS[6])
redis.call('SCARD', KEYS[7])
for i = 8, #KEYS, 2 do
  redis.call('LLEN', KEYS[i])
  redis.call('ZCARD', KEYS[i + 1])
end

local clock = redis.call('TIME')
local now = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))

-- The first write must be one that a full server refuses, such as HSET: after any other, such
-- as HDEL, it lets the whole script pass.
local states = tonumber(take())
local stored = {}
for _ = 1, states do
  local field = take()
  stored[field] = true
  redis.call('HSET', KEYS[2], field, take())
end
if states > 0 then
  for _, field in ipairs(redis.call('HKEYS', KEYS[2])) do
    if not stored[field] then  -- of a model that was taken out of the content
      redis.call('HDEL', KEYS[2], field)
    end
  end
end

local reply = {'ok', 0}
local before = {}
for _ = 1, tonumber(take()) do
  local id, revision, live, blob = take(), tonumber(take()), take(), take()
  before[id] = tonumber(redis.call('HGET', KEYS[4], id) or 0)
  if revision > before[id] then
    redis.call('HSET', KEYS[4], id, revision)
    redis.call('HSET', KEYS[3], id, blob)
    redis.call('ZADD', KEYS[5], live == '1' and '+inf' or now, id)
    reply[#reply + 1] = id
  end
end

for i = 1, tonumber(take()) do
  local receiver, lane, id = take(), take(), take()
  local revision, time, blob = tonumber(take()), take(), take()
  if revision > before[id] then
    local due = KEYS[7 + 2 * i]
    redis.call('RPUSH', KEYS[6 + 2 * i], now .. ' ' .. blob)
    -- NX: a lane that waits for its retry, or that a dispatcher holds, keeps its time
    redis.call('ZADD', due, 'NX', tonumber(time) < tonumber(now) and time or now, lane)
    redis.call('SADD', KEYS[7], receiver)
    reply[2] = reply[2] + 1
  end
end

-- By content, not by count: the same commit sent twice takes nothing off the second time
for _ = 1, tonumber(take()) do
  local done = take()
  if redis.call('LINDEX', KEYS[6], 0) == done then
    redis.call('LPOP', KEYS[6])
  end
end
return reply
