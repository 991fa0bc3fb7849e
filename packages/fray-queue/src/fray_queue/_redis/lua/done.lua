-- ARGV: now, slot, number, count, then of each lease its place, token, and answer's outcome and payload
-- Returns which of them are lost, counted from 0.
local known = kept()
if known then return known end
sweep()
local refused, gone = {}, {}
local function flush()
  if #gone == 0 then return end
  call('HDEL', ITEMS, unpack(gone))
  call('HDEL', STATE, unpack(gone))
  if call('ZREM', HELD, unpack(gone)) < #gone then call('ZREM', READY, unpack(gone)) end
  gone = {}
end
for i = 0, tonumber(ARGV[4]) - 1 do
  local at = 5 + 4 * i
  local place = ARGV[at]
  local s = held(place, ARGV[at + 1])
  if s and not gone[place] then
    gone[#gone + 1] = place
    gone[place] = true
    if s[D] > 0 then call('ZREM', DATED, place) end
    if s[K] ~= '' then call('HDEL', KEYED, s[K]) end
    answer_askers(place, s, ARGV[at + 2], ARGV[at + 3])
    if #gone >= CHUNK then flush() end
  else
    refused[#refused + 1] = i
  end
end
local some = #gone > 0
flush()
if max_size and some then wake(ROOM) end
return keep(refused)
