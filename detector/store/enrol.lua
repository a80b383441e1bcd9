-- Gives places in a job's roster to GPUs of one host that have none yet.
--
-- KEYS  1 hash of who the job is
-- ARGV  1 host  2 seconds the hash is kept  3.. UUID, index ("" for none) of each GPU
-- Reply how many places there are by now
--
-- Places are counted in "gpus#" and never given twice, so what values stand for stays as long
-- as the job runs. All GPUs of a host are in one field, "gpus:<host>".

local count = tonumber(redis.call('HGET', KEYS[1], 'gpus#') or '0') or 0
local taken = {}
local own = {}
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  if string.sub(known[i], 1, 5) == 'gpus:' then
    local good, gpus = pcall(cjson.decode, known[i + 1])
    if good and type(gpus) == 'table' then
      for _, gpu in ipairs(gpus) do
        taken[gpu.uuid] = true
        count = math.max(count, (tonumber(gpu.at) or -1) + 1)
      end
      if known[i] == 'gpus:' .. ARGV[1] then
        own = gpus
      end
    end
  end
end
local before = count
for i = 3, #ARGV, 2 do
  if not taken[ARGV[i]] then
    taken[ARGV[i]] = true
    own[#own + 1] = {at = count, uuid = ARGV[i], index = tonumber(ARGV[i + 1])}
    count = count + 1
  end
end
if count > before then
  redis.call('HSET', KEYS[1], 'gpus:' .. ARGV[1], cjson.encode(own), 'gpus#', count)
  redis.call('EXPIRE', KEYS[1], ARGV[2])
end
return count
