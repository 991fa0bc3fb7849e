-- ARGV: now, slot, number, place, token, delay, error, failure, unreadable, delays of the unreadable…
if known then return known end
local rule = rules()
rule.sweep()
local place = ARGV[4]
local s = rule.held(place, ARGV[5])
if not s then return keep(0) end
rule.take_out(place, s)
local until_ = tonumber(ARGV[6]) > 0 and now + tonumber(ARGV[6]) or 0
local dead = most and s[A] >= most
if ARGV[9] ~= '' then
  s[H][#s[H] + 1] = { s[A], 'unreadable', s[T], now, ARGV[9] }
  local takers = 0
  for _, attempt in ipairs(s[H]) do
    if attempt[2] == 'unreadable' then takers = takers + 1 end
  end
  local delay = ARGV[9 + takers]
  if delay then until_ = now + tonumber(delay) else dead = true end
else
  rule.note(s, now < s[U] and 'released' or 'expired', ARGV[7] ~= '' and ARGV[7])
end
s[L], s[T] = '', 0
local failure = ARGV[8] ~= '' and ARGV[8] or nil
if dead then
  rule.mark_dead(place, s, false, failure)
elseif s[D] > 0 and s[D] <= now then
  rule.mark_dead(place, s, true, failure)
else
  rule.put_back(place, s, until_ > 0 and s[D] > 0 and math.min(until_, s[D]) or until_)
end
return keep(1)
