-- Takes or renews one shard's lease.
--
-- KEYS  1 lease  2 fence
-- ARGV  1 owner  2 time to live, ms
-- Reply the fencing token, or 0 while another owner holds the shard
--
-- The first write of a take-over is a DEL, which a full server allows, and with it the rest:
-- somebody must be in charge of saying that it is full.

local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] then
  redis.call('PEXPIRE', KEYS[1], ARGV[2])
  return tonumber(redis.call('GET', KEYS[2]))
end
if holder then
  return 0
end
redis.call('DEL', KEYS[1])
local fence = redis.call('INCR', KEYS[2])
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return fence
