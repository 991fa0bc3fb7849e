-- ARGV: now, slot, number, n, lease time, token, woken
-- Returns the time until something may be there by itself, or -1 where the next call is to sweep on; then of each item its
-- place, attempt, times, reply and payload.
local token = ARGV[6]
local found = { false }

local function add(place, s, payload)
  local at = #found
  found[at + 1], found[at + 2], found[at + 3], found[at + 4] = place, s[A], s[T], s[U]
  found[at + 5] = (s[R] > 0 or s[K] ~= '') and 1 or 0
  found[at + 6] = payload or ''
end

local rule = nil
if known then  -- what is still leased of it
  rule = rules()
  for _, place in ipairs(known) do
    local s = rule.held(place, token)
    if s then add(place, s, call('HGET', ITEMS, place)) end
  end
  return found
end
sweep()
if is_late() then return { -1 } end
local places, payloads, left = {}, {}, tonumber(ARGV[4])  -- a payload is false where it is in `items`

local function take_line(most)
  local taken = call('LPOP', LINE, math.min(most, CHUNK)) or {}
  for _, entry in ipairs(taken) do
    places[#places + 1] = string.sub(entry, 1, PLACE)
    payloads[#places] = string.sub(entry, PLACE + 1)
  end
  left = left - #taken
  return #taken > 0
end

local function take_ready(most)
  local taken = call('ZPOPMIN', READY, math.min(most, CHUNK))
  for i = 1, #taken, 2 do
    places[#places + 1] = taken[i]
    payloads[#places] = false
  end
  left = left - #taken / 2
end

local head = nil  -- of `line`, as long as it is known
while left > 0 do
  local first = call('ZRANGE', READY, 0, 0, 'WITHSCORES')
  local score = tonumber(first[2])
  if not score or score > 0 then
    if not take_line(left) then
      if not score then break end
      take_ready(left)
    end
  elseif score < 0 then
    take_ready(1)
  else
    rule = rule or rules()
    head = head or rule.head_of_line()
    if not head then
      take_ready(left)
    elseif first[1] < head then
      take_ready(1)
    else
      take_line(1)
      head = nil
    end
  end
end
if #places == 0 then
  call('LPOP', WAKE)  -- it tells of nothing that is there
  rule = rules()
  rule.drop_answers()  -- there is time, and it may be that nobody else looks
  return { rule.next_change() }
end
local until_ = now + tonumber(ARGV[5])
local plain = { 1, token, now, until_, 0, '', 0, 0, {}, 0 }
local packed_plain = cmsgpack.pack(plain)
for start = 1, #places, CHUNK do
  local stop = math.min(start + CHUNK - 1, #places)
  local stored, stored_payloads, stored_states = {}, nil, nil
  for i = start, stop do
    if not payloads[i] then stored[#stored + 1] = places[i] end
  end
  if #stored > 0 then
    stored_payloads, stored_states = call('HMGET', ITEMS, unpack(stored)), call('HMGET', STATE, unpack(stored))
  end
  local states, ends, items, at = {}, {}, {}, 0
  for i = start, stop do
    local place, payload, s, packed = places[i], payloads[i], plain, packed_plain
    if payload then
      items[#items + 1], items[#items + 2] = place, payload
    else
      at = at + 1
      payload = stored_payloads[at]
      if stored_states[at] then
        s = cmsgpack.unpack(stored_states[at])
        if s[L] ~= '' then
          rule = rule or rules()
          rule.note(s, 'expired')
        end
        s[A], s[L], s[T], s[U] = s[A] + 1, token, now, until_
        if s[D] > 0 then call('ZREM', BASE .. 'dated', place) end
        packed = cmsgpack.pack(s)
      end
    end
    states[#states + 1], states[#states + 2] = place, packed
    ends[#ends + 1], ends[#ends + 2] = until_, place
    add(place, s, payload)
  end
  if #items > 0 then call('HSET', ITEMS, unpack(items)) end
  call('HSET', STATE, unpack(states))
  call('ZADD', HELD, unpack(ends))
end
keep(places)
if ARGV[7] == '1' and (call('LLEN', LINE) > 0 or call('ZCARD', READY) > 0) then wake(WAKE) end
return found
