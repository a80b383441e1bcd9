-- Gives places in a job's roster to GPUs that have none yet.
--
-- KEYS  1 hash of who the job is
-- ARGV  1 seconds the hash is kept  2.. host, UUID, index ("" for none) of each GPU
-- Reply how many places there are by now
--
-- Places are counted in "gpus#" and never given twice, so what values stand for stays as long
-- as the job runs. All GPUs of a host are in one field, "gpus:<host>".

local count = tonumber(redis.call('HGET', KEYS[1], 'gpus#') or '0') or 0
local taken = {}
local hosts = {}
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  if string.sub(known[i], 1, 5) == 'gpus:' then
    local good, gpus = pcall(cjson.decode, known[i + 1])
    if good and type(gpus) == 'table' then
      for _, gpu in ipairs(gpus) do
        taken[gpu.uuid] = true
        count = math.max(count, (tonumber(gpu.at) or -1) + 1)
      end
      hosts[known[i]] = gpus
    end
  end
end
local changed = {}
for i = 2, #ARGV, 3 do
  local field, uuid = 'gpus:' .. ARGV[i], ARGV[i + 1]
  if not taken[uuid] then
    taken[uuid] = true
    hosts[field] = hosts[field] or {}
    table.insert(hosts[field], {at = count, uuid = uuid, index = tonumber(ARGV[i + 2])})
    changed[field] = true
    count = count + 1
  end
end
for field in pairs(changed) do
  redis.call('HSET', KEYS[1], field, cjson.encode(hosts[field]), 'gpus#', count)
end
if next(changed) then
  redis.call('EXPIRE', KEYS[1], ARGV[1])
end
return count
