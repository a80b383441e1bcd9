-- Ends a claim: what was sent or buried leaves the lane, the rest gets its next time.
--
-- KEYS  1 lane  2 due set  3 tokens  4 attempts  5 unsure  6 reasons  7 receipts
--       8 receivers  9 dead letters  10 receivers with dead letters
-- ARGV  1 token  2 lane  3 receiver  4 number of notices that leave the lane
--       5 when the rest is due, ms  6 "1" if this was a failed try  7 "1" if it may have been
--       sent all the same  8 reason  9 receipt, "" leaves the stored one
--       10 n, then n follow-ups for the lane's end, then dead letters
-- Reply 1, or 0 when the token is no longer the lane's: then nothing is changed
--
-- The first write is a HDEL, which a full server allows, and with it the rest of the script.

local lane = ARGV[2]
if redis.call('HGET', KEYS[3], lane) ~= ARGV[1] then
  return 0
end
for _, key in ipairs({KEYS[1], KEYS[9]}) do
  redis.call('LLEN', key)  -- a key of a foreign type refuses all of it, before any write
end
redis.call('HLEN', KEYS[7])

redis.call('HDEL', KEYS[3], lane)
if tonumber(ARGV[4]) > 0 then
  redis.call('LTRIM', KEYS[1], ARGV[4], -1)
  for i = 4, 6 do
    redis.call('HDEL', KEYS[i], lane)
  end
else
  if ARGV[6] == '1' then
    redis.call('HINCRBY', KEYS[4], lane, 1)
  end
  if ARGV[7] == '1' then
    redis.call('HSET', KEYS[5], lane, 1)
  end
  if ARGV[8] ~= '' then
    redis.call('HSET', KEYS[6], lane, ARGV[8])
  end
end
if ARGV[9] ~= '' then
  redis.call('HSET', KEYS[7], lane, ARGV[9])
end

local first_dead = 11 + ARGV[10]
for i = 11, first_dead - 1 do
  redis.call('RPUSH', KEYS[1], ARGV[i])
end
for i = first_dead, #ARGV do
  redis.call('RPUSH', KEYS[9], ARGV[i])
  redis.call('SADD', KEYS[10], ARGV[3])
end

if redis.call('LLEN', KEYS[1]) > 0 then
  redis.call('ZADD', KEYS[2], ARGV[5], lane)
else
  redis.call('ZREM', KEYS[2], lane)
  if redis.call('ZCARD', KEYS[2]) == 0 then
    redis.call('SREM', KEYS[8], ARGV[3])
  end
end
return 1
