-- ARGV: now, lease time, then of each lease its place and token. Returns each one's end; 0 where it is lost.
local DATED = BASE .. 'dated'
local rule = rules()
rule.sweep()
local ends = {}
for at = 3, #ARGV, 2 do
  local place = ARGV[at]
  local s = rule.held(place, ARGV[at + 1])
  if s then
    s[U] = now + tonumber(ARGV[2])
    rule.save(place, s)
    call('ZREM', READY, place)
    if s[D] > 0 then call('ZREM', DATED, place) end
    call('ZADD', HELD, s[U], place)
  end
  ends[#ends + 1] = s and s[U] or 0
end
return ends
