-- What every script begins with: the queue's settings, the time, and the transitions of one item. KEYS are all of the
-- queue's, `meta` first. The last of ARGV is the tag of the queue that the caller opened, '' for any.
-- The rules are those of the lease machine; the queue's tests compare the two. Times are microseconds.
-- Each call of a script makes all of this anew, so what the usual push, pop and done can do without is in `rules`.
--
-- line   list, in line: place and payload of the plain items that nobody took yet
-- ready  sorted set, score -priority, member the place in line: who else may be taken, in order
-- held   sorted set by the end of a lease or a delay        dated  sorted set by deadline, of what is in `ready`
-- dead   sorted set, in line                                items  place -> payload and push time; not of `line`
-- state  place -> what changes about an item; a plain item that was never leased has none
-- keys   key -> place      replies, reply_until  answers
-- meta   settings, counters, and of each client's connection its newest request and what that was answered; `plain`
--        is this version's number, if there are neither bounds nor deadlines: then a script asks for no more
--
-- A plain item has no option of `push`: only its turn brings it out of `line`, whose both ends cost the same at any
-- length. Its place is even and all others are odd, so a place says whether its item may be there.
local BASE = string.sub(KEYS[1], 1, -5)  -- without 'meta'
local LINE, READY, HELD = BASE .. 'line', BASE .. 'ready', BASE .. 'held'
local ITEMS, STATE, WAKE, ROOM = BASE .. 'items', BASE .. 'state', BASE .. 'wake', BASE .. 'room'
local PLACE = 12  -- an entry of `line` begins with the place, of so many digits
local A, L, T, U, D, K, R, N, H, P = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
-- attempt, lease, leased at, until, deadline, key, reply_ttl, askers, history, priority
local CHUNK = 1000
local call = redis.call

local tag = table.remove(ARGV)  -- the last one: scripts read the others to their end
local version, pushed, answered, made = unpack(call('HMGET', KEYS[1], 'plain', 'pushed', SLOT or 'none', 'tag'))
local most, max_size, dated = nil, nil, false
if version ~= '@VERSION@' then
  local meta = call('HMGET', KEYS[1], 'version', 'attempts', 'size', 'dated')
  if not meta[1] then return redis.error_reply('FRAYGONE the queue is not there') end
  if meta[1] ~= '@VERSION@' then return redis.error_reply('FRAYVERSION ' .. meta[1]) end
  most, max_size, dated = tonumber(meta[2]), tonumber(meta[3]), meta[4]
end
-- It was deleted, or lost, and made again: a place is another item's now.
if tag ~= '' and tag ~= made then return redis.error_reply('FRAYOTHER ' .. made) end
local now, seconds = tonumber(ARGV[1]), nil
if now then
  seconds = string.format('%.0f', now / 1000000)
else
  local time = call('TIME')
  now, seconds = time[1] * 1000000 + time[2], time[1]
end

-- What this request was answered, if it was done: kept are its number, when that was, and the answer.
local known = nil
local newest = answered and string.match(answered, '^%d+')
if newest == ARGV[3] then
  known = cmsgpack.unpack(string.match(answered, '^%d+:%d+:(.*)'))
elseif newest and tonumber(newest) > tonumber(ARGV[3]) then
  return redis.error_reply('FRAYLATE a later request of this client was answered')
end

local function keep(answer, ...)
  call('HSET', KEYS[1], SLOT, ARGV[3] .. ':' .. seconds .. ':' .. cmsgpack.pack(answer), ...)
  if ARGV[3] == '1' and call('HLEN', KEYS[1]) >= 500 then
    -- Clients that made no request for ten minutes ask for no answer any more.
    local fields = call('HGETALL', KEYS[1])
    for i = 1, #fields, 2 do
      local at = tonumber(string.match(fields[i + 1], '^%d+:(%d+):') or 0)
      if string.sub(fields[i], 1, 2) == 's:' and at < seconds - 600 then call('HDEL', KEYS[1], fields[i]) end
    end
  end
  return answer
end

local function wake(list)
  if call('LLEN', list) == 0 then call('LPUSH', list, 1) end
end

-- What becomes of items. A closure costs as much as what it knows of the outside: these know little.
local function rules()
  local A, L, T, U, D, K, R, N, H, P = 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
  local CHUNK, PLACE = 1000, 12
  local LINE, READY, HELD, DATED, DEAD = BASE .. 'line', BASE .. 'ready', BASE .. 'held', BASE .. 'dated', BASE .. 'dead'
  local ITEMS, STATE, KEYED = BASE .. 'items', BASE .. 'state', BASE .. 'keys'
  local REPLIES, REPLY_UNTIL, WAKE, ROOM = BASE .. 'replies', BASE .. 'reply_until', BASE .. 'wake', BASE .. 'room'
  local rule = {}

  function rule.state_of(place)
    local packed = call('HGET', STATE, place)
    if packed then return cmsgpack.unpack(packed) end
    return { 0, '', 0, 0, 0, '', 0, 0, {}, 0 }
  end

  function rule.save(place, s) call('HSET', STATE, place, cmsgpack.pack(s)) end

  -- How many may be taken now.
  function rule.pending() return call('LLEN', LINE) + call('ZCARD', READY) end

  -- The first item of `line`: its place and payload.
  function rule.head_of_line()
    local entry = call('LINDEX', LINE, 0)
    if entry then return string.sub(entry, 1, PLACE), string.sub(entry, PLACE + 1) end
  end

  function rule.is_in_line(place)
    if #place ~= PLACE or tonumber(place, 16) % 2 == 1 then return false end
    local head = rule.head_of_line()
    return head and place >= head and tonumber(place, 16) <= 2 * tonumber(pushed)
  end

  function rule.note(s, outcome, err)
    if most then s[H][#s[H] + 1] = { s[A], outcome, s[T], math.min(now, s[U]), err or false } end
  end

  function rule.drop_answers()
    local over = call('ZRANGEBYSCORE', REPLY_UNTIL, '-inf', now, 'LIMIT', 0, CHUNK)
    if #over > 0 then
      call('HDEL', REPLIES, unpack(over))
      call('ZREM', REPLY_UNTIL, unpack(over))
    end
  end

  function rule.answer_askers(place, s, outcome, payload)
    if s[R] == 0 then return end
    rule.drop_answers()
    local until_ = now + s[R]
    call('HSET', REPLIES, place, cmsgpack.pack({ outcome, payload, until_, s[N] }))
    call('ZADD', REPLY_UNTIL, until_, place)
    local told = BASE .. 'told:' .. place
    -- A cluster that moves the queue to another node may refuse this one key, which no client names beforehand, and the
    -- rest must be done all the same. Who waits also looks by itself.
    for _ = 1, math.min(s[N], 100) do redis.pcall('LPUSH', told, 1) end
    redis.pcall('EXPIRE', told, 60)
  end

  -- Give an item up. It is in none of the sets; `dated` says that its time passed.
  function rule.mark_dead(place, s, dated, failure)
    if s[K] ~= '' then call('HDEL', KEYED, s[K]) end
    s[L], s[T], s[U], s[K] = '', 0, 0, ''
    if not dated then s[D] = 0 end
    rule.save(place, s)
    call('ZADD', DEAD, 0, place)
    rule.answer_askers(place, s, failure and 'error' or dated and 'expired' or 'dead', failure or '')
    local many = call('ZCARD', DEAD) - call('HGET', KEYS[1], 'dead')  -- more than one, if the bound came later
    if many > 0 then
      local first = call('ZRANGE', DEAD, 0, math.min(many, CHUNK) - 1)
      call('ZREM', DEAD, unpack(first))
      call('HDEL', ITEMS, unpack(first))
      call('HDEL', STATE, unpack(first))
      call('HINCRBY', KEYS[1], 'dropped', #first)
    end
    if max_size then wake(ROOM) end
  end

  -- Put an item where it belongs that nobody holds: in line, or aside until its delay is over.
  function rule.put_back(place, s, until_)
    s[U] = until_
    rule.save(place, s)
    if until_ > 0 then
      call('ZADD', HELD, until_, place)
      return
    end
    call('ZADD', READY, -s[P], place)
    if s[D] > 0 then call('ZADD', DATED, s[D], place) end
    wake(WAKE)
  end

  function rule.take_out(place, s)
    if call('ZREM', HELD, place) == 0 then call('ZREM', READY, place) end
    if s[D] > 0 then call('ZREM', DATED, place) end
  end

  function rule.over(place, s)
    local last = most and s[L] ~= '' and s[A] >= most
    if not last and (s[D] == 0 or s[D] > now) then return false end
    rule.take_out(place, s)
    if s[L] ~= '' then rule.note(s, 'expired') end
    rule.mark_dead(place, s, not last)
    return true
  end

  -- Have what ran out wait again, give up what is over, and drop answers. No call does more than 10,000 items, to keep
  -- nobody waiting.
  function rule.sweep()
    rule.drop_answers()
    for _ = 1, 10 do
      local ended = call('ZRANGEBYSCORE', HELD, '-inf', now, 'LIMIT', 0, CHUNK)
      for _, place in ipairs(ended) do
        local s = rule.state_of(place)
        if not rule.over(place, s) then
          call('ZADD', READY, -s[P], place)
          call('ZREM', HELD, place)
          if s[D] > 0 then call('ZADD', DATED, s[D], place) end
        end
      end
      local late = dated and call('ZRANGEBYSCORE', DATED, '-inf', now, 'LIMIT', 0, CHUNK) or {}
      for _, place in ipairs(late) do rule.over(place, rule.state_of(place)) end
      if #ended < CHUNK and #late < CHUNK then return end
    end
  end

  -- The time until something may be there, or be over, by itself.
  function rule.next_change()
    local next = nil
    for _, set in ipairs({ HELD, DATED }) do
      local first = call('ZRANGE', set, 0, 0, 'WITHSCORES')[2]
      if first then next = math.min(next or math.huge, tonumber(first)) end
    end
    return next and math.max(next - now, 0) or false
  end

  -- The state of a held item; nil where the lease is lost. The sweep came before.
  function rule.held(place, token)
    if token == '' then return nil end
    local packed = call('HGET', STATE, place)
    if not packed then return nil end
    local s = cmsgpack.unpack(packed)
    if s[L] == token then return s end
  end

  return rule
end

-- Whether something is in `ready` whose time passed: more than one sweep gives up.
local function is_late() return dated and call('ZRANGEBYSCORE', BASE .. 'dated', '-inf', now, 'LIMIT', 0, 1)[1] end

local function sweep()
  if call('ZRANGEBYSCORE', HELD, '-inf', now, 'LIMIT', 0, 1)[1] or is_late() then rules().sweep() end
end
