-- ARGV: tag, then max_attempts, max_size and max_dead, '' for what was not said
-- Makes the queue if need be. Returns its tag and settings.
local VERSION = '@VERSION@'
local FIELDS = { 'attempts', 'size', 'dead' }
local version = redis.call('HGET', KEYS[1], 'version')
if version and version ~= VERSION then return redis.error_reply('FRAYVERSION ' .. version) end
if not version then
  if redis.call('EXISTS', KEYS[1]) == 1 then return redis.error_reply('FRAYVERSION none') end
  redis.call('HSET', KEYS[1], 'version', VERSION, 'tag', ARGV[1], 'attempts', ARGV[2], 'size', ARGV[3],
    'dead', ARGV[4] ~= '' and ARGV[4] or '@MOST_DEAD@', 'pushed', 0, 'dropped', 0)
else
  for i, field in ipairs(FIELDS) do
    local given, has = ARGV[i + 1], redis.call('HGET', KEYS[1], field)
    if given ~= '' and given ~= has then
      if has ~= '' and not (field == 'dead' and has == '@MOST_DEAD@') then
        return redis.error_reply('FRAYEXISTS ' .. field .. ' ' .. has .. ' ' .. given)
      end
    end
  end
  for i, field in ipairs(FIELDS) do
    if ARGV[i + 1] ~= '' then redis.call('HSET', KEYS[1], field, ARGV[i + 1]) end
  end
end
local found = redis.call('HMGET', KEYS[1], 'attempts', 'size', 'dated')
if found[1] == '' and found[2] == '' and not found[3] then
  redis.call('HSET', KEYS[1], 'plain', VERSION)
else
  redis.call('HDEL', KEYS[1], 'plain')
end
return redis.call('HMGET', KEYS[1], 'tag', 'attempts', 'size', 'dead')
