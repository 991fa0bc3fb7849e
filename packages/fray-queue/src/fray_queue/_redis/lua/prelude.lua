-- What every script begins with: the queue's settings, the time, and the transitions of one item.
-- The rules are those of the lease machine; the queue's tests compare the two. Times are microseconds.
--
-- ready  sorted set, score -priority, member the place in line: who may be taken, in order
-- held   sorted set by the end of a lease or a delay        dated  sorted set by deadline, of what is in `ready`
-- dead   sorted set, in line                                items  place -> payload and push time
-- state  place -> what changes about an item; a plain item that was never leased has none
-- keys   key -> place      replies, reply_until  answers
-- meta   settings, counters, and of each client's connection its newest request and what that was answered
local BASE = string.sub(KEYS[1], 1, -5)  -- without 'meta'
local READY, HELD, DATED, DEAD = BASE .. 'ready', BASE .. 'held', BASE .. 'dated', BASE .. 'dead'
local ITEMS, STATE, KEYED = BASE .. 'items', BASE .. 'state', BASE .. 'keys'
local REPLIES, REPLY_UNTIL, WAKE, ROOM = BASE .. 'replies', BASE .. 'reply_until', BASE .. 'wake', BASE .. 'room'
local A, L, T, U, D, K, R, N, H, P = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- attempt, lease, leased at, until, deadline, key, reply_ttl, askers, history, priority
local CHUNK = 1000
local call = redis.call

local meta = call('HMGET', KEYS[1], 'version', 'attempts', 'size', 'dead', 'pushed', 'dated', SLOT or 'none')
if not meta[1] then return redis.error_reply('FRAYGONE the queue is not there') end
if meta[1] ~= '@VERSION@' then return redis.error_reply('FRAYVERSION ' .. meta[1]) end
local most, max_size, max_dead = tonumber(meta[2]), tonumber(meta[3]), tonumber(meta[4])
local now = tonumber(ARGV[1])
if not now then
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function kept()
  if not meta[7] then return nil end
  local known = cmsgpack.unpack(meta[7])
  if known[1] == tonumber(ARGV[3]) then return known[2] end
  if known[1] > tonumber(ARGV[3]) then
    return redis.error_reply('FRAYLATE a later request of this client was answered')
  end
end

-- Clients that made no request for ten minutes ask for no answer any more.
local function forget_clients()
  if call('HLEN', KEYS[1]) < 500 then return end
  local fields = call('HGETALL', KEYS[1])
  for i = 1, #fields, 2 do
    if string.sub(fields[i], 1, 2) == 's:' and cmsgpack.unpack(fields[i + 1])[3] < now - 600000000 then
      call('HDEL', KEYS[1], fields[i])
    end
  end
end

local function keep(answer, ...)
  call('HSET', KEYS[1], SLOT, cmsgpack.pack({ tonumber(ARGV[3]), answer, now }), ...)
  if ARGV[3] == '1' then forget_clients() end
  return answer
end

local function state_of(place)
  local packed = call('HGET', STATE, place)
  if packed then return cmsgpack.unpack(packed) end
  return { 0, '', 0, 0, 0, '', 0, 0, {}, 0 }
end

local function save(place, s) call('HSET', STATE, place, cmsgpack.pack(s)) end

local function wake(list)
  if call('LLEN', list) == 0 then call('LPUSH', list, 1) end
end

local function note(s, outcome, err)
  if most then s[H][#s[H] + 1] = { s[A], outcome, s[T], math.min(now, s[U]), err or false } end
end

local function drop_answers()
  local over = call('ZRANGEBYSCORE', REPLY_UNTIL, '-inf', now, 'LIMIT', 0, CHUNK)
  if #over > 0 then
    call('HDEL', REPLIES, unpack(over))
    call('ZREM', REPLY_UNTIL, unpack(over))
  end
end

local function answer_askers(place, s, outcome, payload)
  if s[R] == 0 then return end
  drop_answers()
  local until_ = now + s[R]
  call('HSET', REPLIES, place, cmsgpack.pack({ outcome, payload, until_, s[N] }))
  call('ZADD', REPLY_UNTIL, until_, place)
  local told = BASE .. 'told:' .. place
  for _ = 1, math.min(s[N], 100) do call('LPUSH', told, 1) end
  call('EXPIRE', told, 60)
end

-- Give an item up. It is in none of the sets; `dated` says that its time passed.
local function mark_dead(place, s, dated, failure)
  if s[K] ~= '' then call('HDEL', KEYED, s[K]) end
  s[L], s[T], s[U], s[K] = '', 0, 0, ''
  if not dated then s[D] = 0 end
  save(place, s)
  call('ZADD', DEAD, 0, place)
  answer_askers(place, s, failure and 'error' or dated and 'expired' or 'dead', failure or '')
  if call('ZCARD', DEAD) > max_dead then
    local first = call('ZRANGE', DEAD, 0, 0)[1]
    call('ZREM', DEAD, first)
    call('HDEL', ITEMS, first)
    call('HDEL', STATE, first)
    call('HINCRBY', KEYS[1], 'dropped', 1)
  end
  if max_size then wake(ROOM) end
end

-- Put an item where it belongs that nobody holds: in line, or aside until its delay is over.
local function put_back(place, s, until_)
  s[U] = until_
  save(place, s)
  if until_ > 0 then
    call('ZADD', HELD, until_, place)
    return
  end
  call('ZADD', READY, -s[P], place)
  if s[D] > 0 then call('ZADD', DATED, s[D], place) end
  wake(WAKE)
end

local function take_out(place, s)
  if call('ZREM', HELD, place) == 0 then call('ZREM', READY, place) end
  if s[D] > 0 then call('ZREM', DATED, place) end
end

local function over(place, s)
  local last = most and s[L] ~= '' and s[A] >= most
  if not last and (s[D] == 0 or s[D] > now) then return false end
  take_out(place, s)
  if s[L] ~= '' then note(s, 'expired') end
  mark_dead(place, s, not last)
  return true
end

-- Have what ran out wait again, and give up what is over. No call does more than 10,000, to keep nobody waiting.
local function sweep()
  for _ = 1, 10 do
    local ended = call('ZRANGEBYSCORE', HELD, '-inf', now, 'LIMIT', 0, CHUNK)
    for _, place in ipairs(ended) do
      local s = state_of(place)
      if not over(place, s) then
        call('ZADD', READY, -s[P], place)
        call('ZREM', HELD, place)
        if s[D] > 0 then call('ZADD', DATED, s[D], place) end
      end
    end
    local late = meta[6] and call('ZRANGEBYSCORE', DATED, '-inf', now, 'LIMIT', 0, CHUNK) or {}
    for _, place in ipairs(late) do over(place, state_of(place)) end
    if #ended < CHUNK and #late < CHUNK then return end
  end
end

-- The time until something may be there, or be over, by itself.
local function next_change()
  local next = nil
  for _, set in ipairs({ HELD, DATED }) do
    local first = call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
    if first then next = math.min(next or math.huge, tonumber(first)) end
  end
  return next and math.max(next - now, 0) or false
end

-- The state of a held item; nil where the lease is lost. The sweep came before.
local function held(place, token)
  if token == '' then return nil end
  local packed = call('HGET', STATE, place)
  if not packed then return nil end
  local s = cmsgpack.unpack(packed)
  if s[L] == token then return s end
end
