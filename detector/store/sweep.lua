-- Drops a shard's incidents that ended long ago, and receipts that nothing can need any more.
--
-- KEYS  1 incidents  2 revisions  3 ends  4 receipts
-- ARGV  1 forget what ended before, ms  2 a lane's key without the lane
-- Reply number of incidents dropped

local ids = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', '(' .. ARGV[1])
for _, id in ipairs(ids) do
  redis.call('HDEL', KEYS[1], id)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[3], id)
end
for _, lane in ipairs(redis.call('HKEYS', KEYS[4])) do
  local id = string.match(lane, '|([^|]*)$')
  if redis.call('HEXISTS', KEYS[2], id) == 0
      and redis.call('EXISTS', ARGV[2] .. lane) == 0 then
    redis.call('HDEL', KEYS[4], lane)
  end
end
return #ids
