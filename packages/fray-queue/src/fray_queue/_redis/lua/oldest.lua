-- ARGV: now, where to go on, 'held' or 'ready', and how far the last call came there
-- Returns where to go on, '' at the end, and how far this call came; then the age of the oldest item that it found.
-- It looks at a thousand or so, to keep nobody waiting: `held` is not in the order of the pushes, nor is `ready`.
local rule = rules()
rule.sweep()
local step, cursor = ARGV[2], ARGV[3]
local oldest, payload = rule.head_of_line()

local function see(place)
  if not oldest or place < oldest then oldest, payload = place, nil end
end

if step == 'held' then
  local found = call('ZSCAN', HELD, cursor, 'COUNT', CHUNK)
  cursor = found[1]
  for i = 1, #found[2], 2 do see(found[2][i]) end
  if cursor == '0' then step, cursor = 'ready', '-inf' end
end
if step == 'ready' then  -- of each priority the first
  local first
  for _ = 1, CHUNK do
    first = call('ZRANGEBYSCORE', READY, cursor, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
    if not first[1] then break end
    see(first[1])
    cursor = '(' .. first[2]
  end
  if not first[1] then step, cursor = '', '' end
end
payload = payload or oldest and call('HGET', ITEMS, oldest) or ''
if string.sub(payload, -12, -10) ~= '\0at' then return { step, cursor } end  -- none, or of a release that kept no time
return { step, cursor, math.max(0, now - 1000000 * struct.unpack('>d', string.sub(payload, -9))) }
