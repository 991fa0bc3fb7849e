-- ARGV: now, then of each lease its place and token. A lease that is lost is passed over.
local rule = rules()
rule.sweep()
for at = 2, #ARGV, 2 do
  local place = ARGV[at]
  local s = rule.held(place, ARGV[at + 1])
  if s then
    rule.take_out(place, s)
    s[A], s[L], s[T] = s[A] - 1, '', 0
    rule.put_back(place, s, 0)
  end
end
return 1
