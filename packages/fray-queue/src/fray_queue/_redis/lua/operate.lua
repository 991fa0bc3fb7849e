-- ARGV: now, slot, number, what is done: 'requeue', 'purge' or 'purge_dead'; then 'all' or 'these' and places…
if known then return known end
local DATED, DEAD, KEYED, REPLIES, REPLY_UNTIL = BASE .. 'dated', BASE .. 'dead', BASE .. 'keys', BASE .. 'replies', BASE .. 'reply_until'
local rule = rules()
rule.sweep()
local verb, count = ARGV[4], 0
if verb == 'purge' then
  count = rule.pending() + call('ZCARD', HELD)
  local dead, saved = call('ZRANGE', DEAD, 0, -1), {}
  for _, place in ipairs(dead) do
    saved[#saved + 1] = { place, call('HGET', ITEMS, place), call('HGET', STATE, place) }
  end
  call('UNLINK', LINE, READY, HELD, DATED, ITEMS, STATE, KEYED)
  for _, each in ipairs(saved) do
    call('HSET', ITEMS, each[1], each[2] or '')
    call('HSET', STATE, each[1], each[3])
  end
  if max_size then wake(ROOM) end
  return keep(count)
end
local places = {}
if ARGV[5] == 'all' then
  places = call('ZRANGE', DEAD, 0, -1)
else
  for i = 6, #ARGV do places[#places + 1] = ARGV[i] end
end
for _, place in ipairs(places) do
  if call('ZREM', DEAD, place) == 1 then
    count = count + 1
    if verb == 'purge_dead' then
      call('HDEL', ITEMS, place)
      call('HDEL', STATE, place)
    else
      local s = rule.state_of(place)
      s[A], s[D], s[H] = 0, 0, {}
      call('HDEL', REPLIES, place)
      call('ZREM', REPLY_UNTIL, place)
      rule.put_back(place, s, 0)
    end
  end
end
return keep(count)
