-- Leases due lanes of one shard to one dispatcher.
--
-- KEYS  1 tokens  2 attempts  3 unsure  4 receipts
--       5.. for each lane in order: its list, its receiver's due set
-- ARGV  1 now, ms  2 until, ms  3 token  4 notices at most, a lane  5.. the lanes
-- Reply for each lane that was got: {lane, {item...}, receipt or "", attempts, unsure}
--
-- A lane that is due and still carries a token was held by a dispatcher that died in mid-send:
-- that counts as a failed try, and whether its message went out nobody knows.
--
-- The first write is a HDEL, which a full server allows, and with it the rest of the script: what
-- is owed goes out while memory is short.

local reply = {}
for i = 5, #ARGV do
  local lane, list, due = ARGV[i], KEYS[2 * i - 5], KEYS[2 * i - 4]
  local score = redis.call('ZSCORE', due, lane)
  if score and tonumber(score) <= tonumber(ARGV[1]) then
    if redis.call('HDEL', KEYS[1], lane) == 1 then
      redis.call('HINCRBY', KEYS[2], lane, 1)
      redis.call('HSET', KEYS[3], lane, 1)
    end
    redis.call('HSET', KEYS[1], lane, ARGV[3])
    redis.call('ZADD', due, ARGV[2], lane)
    reply[#reply + 1] = {
      lane,
      redis.call('LRANGE', list, 0, ARGV[4] - 1),
      redis.call('HGET', KEYS[4], lane) or '',
      tonumber(redis.call('HGET', KEYS[2], lane) or 0),
      redis.call('HEXISTS', KEYS[3], lane),
    }
  end
end
return reply
