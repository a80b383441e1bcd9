-- Counts what one shard owes to each receiver.
--
-- KEYS  1 receivers
-- ARGV  1 what every key of the shard begins with (the keys are of KEYS[1]'s slot)
-- Reply for each receiver: {receiver, number of notices, queue time of the oldest, ms}

local reply = {}
for _, receiver in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local count, oldest = 0, nil
  for _, lane in ipairs(redis.call('ZRANGE', ARGV[1] .. 'due:' .. receiver, 0, -1)) do
    local list = ARGV[1] .. 'lane:' .. lane
    count = count + redis.call('LLEN', list)
    local queued = tonumber(string.match(redis.call('LINDEX', list, 0) or '', '^%d+'))
    if queued and (not oldest or queued < oldest) then
      oldest = queued
    end
  end
  if oldest then
    reply[#reply + 1] = {receiver, count, string.format('%.0f', oldest)}
  end
end
return reply
