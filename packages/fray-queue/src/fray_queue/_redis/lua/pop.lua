-- ARGV: now, slot, number, n, lease time, token, woken
-- Returns the time until something may be there by itself; then of each item its place, attempt, times, reply
-- and payload.
local token = ARGV[6]
local known = kept()
if known and known.err then return known end
local found = { false }

local function add(place, s, payload)
  local at = #found
  found[at + 1], found[at + 2], found[at + 3], found[at + 4] = place, s[A], s[T], s[U]
  found[at + 5] = (s[R] > 0 or s[K] ~= '') and 1 or 0
  found[at + 6] = payload or ''
end

if known then  -- what is still leased of it
  for _, place in ipairs(known) do
    local s = held(place, token)
    if s then add(place, s, call('HGET', ITEMS, place)) end
  end
  return found
end
sweep()
local places, left = {}, tonumber(ARGV[4])
while left > 0 do
  local part = call('ZPOPMIN', READY, math.min(left, CHUNK))
  if #part == 0 then break end
  for i = 1, #part, 2 do places[#places + 1] = part[i] end
  left = left - #part / 2
end
if #places == 0 then
  call('LPOP', WAKE)  -- it tells of nothing that is there
  return { next_change() }
end
local until_ = now + tonumber(ARGV[5])
local plain = { 1, token, now, until_, 0, '', 0, 0, {}, 0 }
local packed_plain = cmsgpack.pack(plain)
for start = 1, #places, CHUNK do
  local stop = math.min(start + CHUNK - 1, #places)
  local states, ends = {}, {}
  local payloads = call('HMGET', ITEMS, unpack(places, start, stop))
  for i, packed in ipairs(call('HMGET', STATE, unpack(places, start, stop))) do
    local place, s = places[start + i - 1], plain
    if packed then
      s = cmsgpack.unpack(packed)
      if s[L] ~= '' then note(s, 'expired') end
      s[A], s[L], s[T], s[U] = s[A] + 1, token, now, until_
      if s[D] > 0 then call('ZREM', DATED, place) end
      packed = cmsgpack.pack(s)
    end
    ends[2 * i - 1], ends[2 * i] = until_, place
    states[2 * i - 1], states[2 * i] = place, packed or packed_plain
    add(place, s, payloads[i])
  end
  call('HSET', STATE, unpack(states))
  call('ZADD', HELD, unpack(ends))
end
keep(places)
if ARGV[7] == '1' and call('ZCARD', READY) > 0 then wake(WAKE) end
return found
