-- ARGV: now, what is asked: 'counts', 'peek', or 'dead' with the place after which to go on,
-- how many, and whether with what they hold: else with its size.
-- Of 'peek' returns -1 where the next call is to sweep on.
local DEAD = BASE .. 'dead'
local rule = rules()
rule.sweep()
if ARGV[2] == 'counts' then
  local dropped = tonumber(call('HGET', KEYS[1], 'dropped') or 0)
  return { rule.pending(), call('ZCARD', HELD), call('ZCARD', DEAD), dropped }
end
if ARGV[2] == 'peek' then
  if is_late() then return { -1 } end
  local first = call('ZRANGE', READY, 0, 0, 'WITHSCORES')
  local place, payload = rule.head_of_line()
  local score = tonumber(first[2])
  if not place or score and (score < 0 or score == 0 and first[1] < place) then
    return first[1] and { first[1], call('HGET', ITEMS, first[1]) } or {}
  end
  return { place, payload }
end
local function size_of(place)
  local size = redis.pcall('HSTRLEN', ITEMS, place)
  if type(size) == 'number' then return size end
  return #(call('HGET', ITEMS, place) or '')  -- the user may have the rights of an earlier release
end
local letters = {}
for _, place in ipairs(call('ZRANGEBYLEX', DEAD, ARGV[3], '+', 'LIMIT', 0, tonumber(ARGV[4]))) do
  local s = rule.state_of(place)
  local payload = ARGV[5] == '1' and (call('HGET', ITEMS, place) or '') or size_of(place)
  letters[#letters + 1] = { place, payload, s[A], s[D] > 0 and 1 or 0, s[H] }
end
return letters
