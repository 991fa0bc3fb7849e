-- ARGV: now, slot, number, count, priority, delay, ttl, reply_ttl, keyed, payloads…, keys…
if known then return known end
local count, priority = tonumber(ARGV[4]), tonumber(ARGV[5])
local delay, ttl, reply_ttl, keyed = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9] == '1'
local PAYLOADS = 9
if max_size or keyed then sweep() end  -- what is over needs no room, and its key is free
local places, mine, new = {}, {}, count
if keyed then
  for i = 1, count do
    local key = ARGV[PAYLOADS + count + i]
    if key ~= '' then
      places[i] = call('HGET', BASE .. 'keys', key) or mine[key] or nil
      if places[i] then new = new - 1 else mine[key] = i end
    end
  end
end
if max_size and new > 0 then
  local live = rules().pending() + call('ZCARD', HELD)
  if live + new > max_size then
    return redis.error_reply('FRAYFULL ' .. live .. ' ' .. new .. ' ' .. max_size)
  end
end
local next = tonumber(pushed)
local special = priority ~= 0 or delay > 0 or ttl > 0 or reply_ttl > 0
local rule = (special or keyed) and rules()
local deadline = ttl > 0 and now + ttl or 0
local until_ = delay > 0 and (deadline > 0 and math.min(now + delay, deadline) or now + delay) or 0
local stamp = '\0at' .. struct.pack('>d', now / 1000000) .. '\n'  -- of a push: `stamped` of fray_queue._stamps
local line, items, ready = {}, {}, {}
local function flush()
  if #line > 0 then call('RPUSH', LINE, unpack(line)) end
  if #items > 0 then call('HSET', ITEMS, unpack(items)) end
  if #ready > 0 then call('ZADD', READY, unpack(ready)) end
  line, items, ready = {}, {}, {}
end
for i = 1, count do
  local key = keyed and ARGV[PAYLOADS + count + i] or ''
  if places[i] then
    local place = type(places[i]) == 'number' and places[places[i]] or places[i]
    places[i] = place
    if reply_ttl > 0 then
      local s = rule.state_of(place)
      s[N], s[R] = s[N] + 1, math.max(s[R], reply_ttl)
      rule.save(place, s)
    end
  else
    next = next + 1
    local plain = not special and key == ''
    local place = string.format('%012x', 2 * next + (plain and 0 or 1))
    places[i] = place
    if plain then
      line[#line + 1] = place .. ARGV[PAYLOADS + i] .. stamp
    else
      items[#items + 1] = place
      items[#items + 1] = ARGV[PAYLOADS + i] .. stamp
      rule.save(place, { 0, '', 0, until_, deadline, key, reply_ttl, reply_ttl > 0 and 1 or 0, {}, priority })
      if key ~= '' then call('HSET', BASE .. 'keys', key, place) end
      if until_ > 0 then
        call('ZADD', HELD, until_, place)
      else
        ready[#ready + 1] = -priority
        ready[#ready + 1] = place
        if deadline > 0 then call('ZADD', BASE .. 'dated', deadline, place) end
      end
    end
    if #line + #items >= CHUNK then flush() end
  end
end
flush()
if new > 0 then wake(WAKE) end
if ttl > 0 and not dated then
  call('HDEL', KEYS[1], 'plain')
  call('HSET', KEYS[1], 'dated', 1)
end
return keep(keyed and places or { places[1] }, 'pushed', next)
