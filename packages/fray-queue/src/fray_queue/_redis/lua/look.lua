-- ARGV: now, what is asked: 'counts', 'peek', or 'dead' with the place after which to go on, and how many
sweep()
if ARGV[2] == 'counts' then
  local dropped = tonumber(call('HGET', KEYS[1], 'dropped') or 0)
  return { call('ZCARD', READY), call('ZCARD', HELD), call('ZCARD', DEAD), dropped }
end
if ARGV[2] == 'peek' then
  local first = call('ZRANGE', READY, 0, 0)[1]
  return first and { first, call('HGET', ITEMS, first) } or {}
end
local letters = {}
for _, place in ipairs(call('ZRANGEBYLEX', DEAD, ARGV[3], '+', 'LIMIT', 0, tonumber(ARGV[4]))) do
  local s = state_of(place)
  letters[#letters + 1] = { place, call('HGET', ITEMS, place) or '', s[A], s[D] > 0 and 1 or 0, s[H] }
end
return letters
