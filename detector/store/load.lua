-- Loads one shard: its state, its live incidents and those that ended lately.
--
-- KEYS  1 state  2 incidents  3 ends
-- ARGV  1 how long ago "lately" reaches back, ms
-- Reply {state hash, {incident blob...}}

local clock = redis.call('TIME')
local since = clock[1] * 1000 + math.floor(clock[2] / 1000) - tonumber(ARGV[1])
local incidents = {}
local ids = redis.call('ZRANGEBYSCORE', KEYS[3], string.format('%.0f', since), '+inf')
for i, id in ipairs(ids) do
  incidents[i] = redis.call('HGET', KEYS[2], id) or ''
end
return {redis.call('HGETALL', KEYS[1]), incidents}
