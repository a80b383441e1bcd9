-- Takes dead letters of one receiver off their list, and back into their lanes if asked.
--
-- KEYS  1 dead letters  2 receivers with dead letters  3 due set  4 receivers
--       5.. the lane of each letter, when they are to be sent again
-- ARGV  1 receiver  2 now, ms  3 number of letters  then the letters
--       then, when they are to be sent again, for each: lane, item
-- Reply number of letters that were still there

local count, again = tonumber(ARGV[3]), #KEYS > 4
local taken = 0
for i = 1, count do
  if redis.call('LREM', KEYS[1], 1, ARGV[3 + i]) == 1 then
    taken = taken + 1
    if again then
      local lane, item = ARGV[2 + count + 2 * i], ARGV[3 + count + 2 * i]
      redis.call('RPUSH', KEYS[4 + i], item)
      redis.call('ZADD', KEYS[3], 'NX', ARGV[2], lane)
      redis.call('SADD', KEYS[4], ARGV[1])
    end
  end
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('SREM', KEYS[2], ARGV[1])
end
return taken
