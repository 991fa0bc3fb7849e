-- ARGV: now, slot, number, places…
-- Returns the time until more may be over by itself, and of each place 0 (under way) or its outcome and payload.
local DEAD, REPLIES, REPLY_UNTIL = BASE .. 'dead', BASE .. 'replies', BASE .. 'reply_until'
local rule = rules()
rule.sweep()
local found, told = {}, false
for i = 4, #ARGV do
  local place = ARGV[i]
  local packed = call('HGET', REPLIES, place)
  if packed then
    local reply = cmsgpack.unpack(packed)
    found[#found + 1] = { reply[1], reply[2] }
    told = true
    if not known and (reply[1] == 'value' or reply[1] == 'error') then
      reply[4] = reply[4] - 1
      if reply[4] <= 0 then reply[3] = math.min(reply[3], now + 60000000) end
      call('HSET', REPLIES, place, cmsgpack.pack(reply))
      call('ZADD', REPLY_UNTIL, reply[3], place)
    end
  elseif call('ZSCORE', DEAD, place) then
    found[#found + 1] = { rule.state_of(place)[D] > 0 and 'expired' or 'dead', '' }
  else
    found[#found + 1] = (call('HEXISTS', ITEMS, place) == 1 or rule.is_in_line(place)) and 0 or { 'gone', '' }
  end
end
if told and not known then keep(1) end
return { rule.next_change(), found }
