-- ARGV: now, slot, number, count, then of each lease its place, token, and answer's outcome and payload
-- Returns which of them are lost, counted from 0.
if known then return known end
local count = tonumber(ARGV[4])
local refused, gone, some, swept = {}, {}, false, false
local rule = nil
local last_packed, last  -- leases that were taken together have the same state

-- The state of a held item. Only a lease that ran out may be over: else nothing need be swept for it.
local function held_now(place, token, packed)
  if not packed or token == '' then return nil end
  if packed ~= last_packed then last_packed, last = packed, cmsgpack.unpack(packed) end
  if last[L] ~= token then return nil end
  if last[U] > now then return last end
  if not swept then sweep() end
  swept = true
  rule = rule or rules()
  return rule.held(place, token)
end

local function flush()
  if #gone == 0 then return end
  call('HDEL', ITEMS, unpack(gone))
  call('HDEL', STATE, unpack(gone))
  if call('ZREM', HELD, unpack(gone)) < #gone then call('ZREM', READY, unpack(gone)) end
  some = true
end

for start = 0, count - 1, CHUNK do
  local stop, places = math.min(start + CHUNK, count) - 1, {}
  for i = start, stop do places[#places + 1] = ARGV[5 + 4 * i] end
  local states = call('HMGET', STATE, unpack(places))
  gone = {}
  for i = start, stop do
    local at = 5 + 4 * i
    local place = ARGV[at]
    local s = held_now(place, ARGV[at + 1], states[i - start + 1])
    if s and not gone[place] then
      gone[#gone + 1] = place
      gone[place] = true
      if s[D] > 0 then call('ZREM', BASE .. 'dated', place) end
      if s[K] ~= '' then call('HDEL', BASE .. 'keys', s[K]) end
      if s[R] > 0 then
        rule = rule or rules()
        rule.answer_askers(place, s, ARGV[at + 2], ARGV[at + 3])
      end
    else
      refused[#refused + 1] = i
    end
  end
  flush()
end
if max_size and some then wake(ROOM) end
return keep(refused)
