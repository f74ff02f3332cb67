"""A stream log in Redis. It needs the extra `redis`.

The keys of a log begin with its prefix. A stream has four keys: `meta:ID`, a hash; `events:ID`, a Redis stream;
`readers:ID`, a sorted set of the readers with the time of their last sign of life; and `taken:ID`, a hash with the
offset up to which each reader has had the events, and when that was. `key:KEY` has the id of the newest stream with
this key. `streams`, `ended` and `unread` are sorted sets of the ids, by the time at which the stream expires, by the
time of its end in microseconds, and by the last time at which an active stream was seen that its readers have left. All
other times are milliseconds.

Event number 7 has the id `7-0` in the Redis stream, and its offset. The end of a stream adds an entry without an event,
`7-1`, which wakes the readers. Every decision is a Lua script, and uses the time of the Redis server. The rules are
those of `streaming/stream_log.py`.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio

from app_toolkit import ConfigError, StreamActive, StreamLogFull, StreamUnknown
from app_toolkit.streaming.stream_log import (
    EVENT_BYTES,
    PAGE,
    PAGE_BYTES,
    STALLED_S,
    Append,
    Outcome,
    Page,
    Renewal,
    StreamLimits,
    too_many_streams,
    too_many_unread,
)

try:
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import ExponentialBackoff
    from redis.exceptions import BusyLoadingError, RedisError, ResponseError
    from redis.exceptions import ConnectionError as NoConnection
    from redis.exceptions import TimeoutError as Late
except ImportError as error:
    raise ConfigError("a stream log in Redis needs the package redis: pip install 'app-toolkit[redis]'") from error

logger = logging.getLogger("app_toolkit.streaming")

BLOCK_S = 2.0
"""Seconds that one blocking read waits. A reader notices an expired lease this late."""

POLL_S = 0.25
"""Seconds that a reader waits for a connection for its blocking read, before it looks without one."""

BEAT_S = 2.0
"""Seconds between two signs of life of a reader."""

READER_S = 10.0
"""Seconds without a sign of life after which a reader does not count any more."""

LEAVE_S = 1.0
"""Seconds that the end of a reader may take. A reader whose end is not written counts for `READER_S` more."""

RESERVED = 4
"""Connections that blocking reads leave for the other calls."""

MIN_CONNECTIONS = 2 * RESERVED

SOCKET_TIMEOUT_S = 10.0
"""Seconds to connect to Redis, and to receive the reply to a command."""

CONNECTION_WAIT_S = 30.0
"""Seconds that a call waits for a free connection. It is longer than the retries of the calls that use them, so that an
outage that these survive ends no stream."""

FIRST_RETRY_S, LAST_RETRY_S, RETRIES = 0.05, 1.0, 13
"""The waits before retries double up to the longest one. All of them together are 10.5 s."""

PAIRS = 500
"""Readers of which one call writes signs of life, and streams to which one call appends."""

PRELUDE = f"""
local prefix, lease, keep, id = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local reader_ms, stalled_ms, event_bytes = {READER_S * 1_000:.0f}, {STALLED_S * 1_000:.0f}, {EVENT_BYTES}
local clock = redis.call('TIME')
local now_us = tonumber(clock[1]) * 1000000 + tonumber(clock[2])
local now = math.floor(now_us / 1000)

local function text(number) return string.format('%.0f', number) end
local function meta(id) return prefix .. 'meta:' .. id end
local function events(id) return prefix .. 'events:' .. id end
local function readers(id) return prefix .. 'readers:' .. id end
local function taken(id) return prefix .. 'taken:' .. id end
local function unread() return prefix .. 'unread' end
local function get(id, field) return redis.call('HGET', meta(id), field) end
local function exists(id) return redis.call('EXISTS', meta(id)) == 1 end

local function name(id)  -- the key `key:KEY`, if this stream is the newest one with KEY
  local key = get(id, 'key')
  if key and redis.call('GET', prefix .. 'key:' .. key) == id then return prefix .. 'key:' .. key end
end

local function expire(id, ms)
  for _, key in ipairs({{meta(id), events(id), readers(id), taken(id), name(id)}}) do
    redis.call('PEXPIRE', key, text(ms))
  end
  redis.call('ZADD', prefix .. 'streams', text(now + ms), id)
  for _, key in ipairs({{prefix .. 'streams', prefix .. 'ended', unread()}}) do
    if redis.call('PTTL', key) < ms then redis.call('PEXPIRE', key, text(ms)) end
  end
end

-- Redis refuses a write that needs memory if it has none, unless the script has written before. Only events and new
-- streams are refused.
local function write_without_memory(id) redis.call('HDEL', meta(id), '') end

local function renew(id)
  write_without_memory(id)
  redis.call('HSET', meta(id), 'renewed_at', text(now))
  if redis.call('PTTL', meta(id)) < lease + keep - 1000 then expire(id, lease + keep) end
end

local function finish(id, outcome)
  write_without_memory(id)
  redis.call('ZREM', unread(), id)
  redis.call('ZREM', readers(id), get(id, 'owner'))
  redis.call('HDEL', taken(id), get(id, 'owner'))
  redis.call('HSET', meta(id), 'outcome', outcome)
  local ends = redis.call('HINCRBY', meta(id), 'ends', 1)
  redis.call('XADD', events(id), get(id, 'last') .. '-' .. text(ends), 'outcome', outcome)
  redis.call('ZADD', prefix .. 'ended', text(now_us), id)
  expire(id, keep)
end

local function look(id)  -- the outcome of a stream, which is lost if its lease has expired
  local outcome = get(id, 'outcome')
  if not outcome and exists(id) and now - tonumber(get(id, 'renewed_at')) > lease then
    finish(id, 'lost')
    return 'lost'
  end
  return outcome
end

local function is_read(id) return redis.call('ZCOUNT', readers(id), text(now - reader_ms), '+inf') > 0 end

local function had(id)  -- the offset up to which all readers have had the events; nil: there are no readers
  local live, found, fastest, slowest = {{}}, redis.call('HGETALL', taken(id)), nil, nil
  if #found == 0 then return nil end
  for _, reader in ipairs(redis.call('ZRANGEBYSCORE', readers(id), text(now - reader_ms), '+inf')) do
    live[reader] = true
  end
  local offsets = {{}}
  for at = 1, #found, 2 do
    if live[found[at]] then
      local offset, since = string.match(found[at + 1], '(%d+) (%d+)')
      offset = tonumber(offset)
      offsets[#offsets + 1] = {{offset, tonumber(since)}}
      fastest = math.max(fastest or 0, offset)
    end
  end
  for _, each in ipairs(offsets) do
    if each[1] == fastest or now - each[2] <= stalled_ms then slowest = math.min(slowest or each[1], each[1]) end
  end
  return slowest
end

local function room(id, max_bytes)  -- the bytes that may be appended, and that the next event may have
  local start, stop = unpack(redis.call('HMGET', meta(id), 'start', 'end'))
  start, stop = tonumber(start), tonumber(stop)
  local offset = had(id)
  if not offset then return max_bytes - (stop - start), max_bytes - (stop - start) end
  local ahead = math.max(0, math.floor(max_bytes / 2) - (stop - offset))
  return ahead, offset == stop and max_bytes or ahead
end

local function set_unread(id)
  redis.call('ZADD', unread(), text(now), id)
  redis.call('PEXPIRE', unread(), math.max(redis.call('PTTL', unread()), redis.call('PTTL', meta(id)), 1))
end

local function renewal(id, max_bytes, full)  -- the fields of a Renewal
  renew(id)
  local unread_ms = 0
  if is_read(id) then
    redis.call('ZREM', unread(), id)
  else
    local latest = redis.call('ZREVRANGE', readers(id), 0, 0, 'WITHSCORES')
    unread_ms = now - math.max(tonumber(get(id, 'unread_since')), tonumber(latest[2] or 0))
    if get(id, 'read') then set_unread(id) end
  end
  local _, largest = room(id, max_bytes)
  return {{get(id, 'stop') and 1 or 0, unread_ms, tonumber(get(id, 'last')), largest, full and 1 or 0}}
end

local function offset_of(id, number)  -- an evicted event has the offset of the newest evicted one
  local first, last, start, stop = unpack(redis.call('HMGET', meta(id), 'first', 'last', 'start', 'end'))
  if number < tonumber(first) then return tonumber(start) end
  if number >= tonumber(last) then return tonumber(stop) end
  return tonumber(redis.call('XRANGE', events(id), text(number) .. '-0', text(number) .. '-0')[1][2][4])
end

local function beat(id, reader)
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', readers(id), '-inf', text(now - reader_ms))) do
    redis.call('HDEL', taken(id), gone)
  end
  redis.call('ZREMRANGEBYSCORE', readers(id), '-inf', text(now - reader_ms))
  redis.call('ZADD', readers(id), text(now), reader)
  if redis.call('PTTL', meta(id)) < reader_ms then expire(id, reader_ms) end
  redis.call('PEXPIRE', readers(id), math.max(redis.call('PTTL', meta(id)), 1))
end

local function take(id, reader, number)  -- a reader has had all events up to a number
  beat(id, reader)
  local offset, before = offset_of(id, number), redis.call('HGET', taken(id), reader)
  if not before or offset > tonumber(string.match(before, '%d+')) then
    redis.call('HSET', taken(id), reader, text(offset) .. ' ' .. text(now))
    redis.call('PEXPIRE', taken(id), math.max(redis.call('PTTL', meta(id)), 1))
  end
  redis.call('HSETNX', meta(id), 'read', 1)
  redis.call('ZREM', unread(), id)
end

local function leave(id, reader)
  redis.call('HDEL', taken(id), reader)
  if redis.call('ZREM', readers(id), reader) == 1 and exists(id) and not is_read(id) then
    redis.call('HSET', meta(id), 'unread_since', text(now))
    if not get(id, 'outcome') then set_unread(id) end
    return true
  end
end

local function remove(id)
  local named = name(id)
  if named then redis.call('DEL', named) end
  redis.call('DEL', meta(id), events(id), readers(id), taken(id))
  redis.call('ZREM', unread(), id)
  redis.call('ZREM', prefix .. 'streams', id)
  redis.call('ZREM', prefix .. 'ended', id)
end
"""

BEGIN = """
local owner, media_type, max_streams, max_unread, key = ARGV[5], ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
if exists(id) then  -- a retry of the same call succeeds
  if get(id, 'owner') == owner and get(id, 'last') == '0' and not get(id, 'outcome') then return 'begun' end
  return 'exists'
end
local before = key and redis.call('GET', prefix .. 'key:' .. key)
if before and exists(before) and not look(before) then return 'active' end
if redis.call('ZCOUNT', unread(), text(now - lease), '+inf') >= max_unread then return 'unread' end
for _, expired in ipairs(redis.call('ZRANGEBYSCORE', prefix .. 'streams', '-inf', text(now), 'LIMIT', 0, 1000)) do
  if not exists(expired) then remove(expired) end
end
local missing = redis.call('ZCARD', prefix .. 'streams') + 1 - max_streams
if missing > 0 then
  for _, ended in ipairs(redis.call('ZRANGE', prefix .. 'ended', 0, -1)) do
    if not is_read(ended) then
      remove(ended)
      missing = missing - 1
      if missing == 0 then break end
    end
  end
  if missing > 0 then return 'full' end
end
redis.call('HSET', meta(id), 'owner', owner, 'media_type', media_type, 'first', 1, 'last', 0, 'start', 0, 'end', 0,
  'renewed_at', text(now), 'unread_since', text(now))
if key then
  redis.call('HSET', meta(id), 'key', key)
  redis.call('SET', prefix .. 'key:' .. key, id)
end
expire(id, lease + keep)
return 'begun'
"""

APPEND = """
-- Append the events that fit. Return whether one was refused that no reader can make room for.
local function append(id, max_bytes, number, from, count)
  local first, last, start, stop = unpack(redis.call('HMGET', meta(id), 'first', 'last', 'start', 'end'))
  first, last, start, stop = tonumber(first), tonumber(last), tonumber(start), tonumber(stop)
  if number > last + 1 then return false end
  local free, largest = room(id, max_bytes)
  local after, before, full = last, stop, false
  for at = from + last + 1 - number, from + count - 1 do
    local size = #ARGV[at] + event_bytes
    if stop + size - before > free and (last > after or size > largest) then
      full = last == after and size > max_bytes
      break
    end
    local entry = redis.pcall('XADD', events(id), text(last + 1) .. '-0', 'event', ARGV[at], 'end', text(stop + size))
    if type(entry) == 'table' and entry.err then
      if not string.find(entry.err, 'maxmemory') then error(entry.err) end
      full = true
      break
    end
    stop, last = stop + size, last + 1
  end
  if last > after then
    local found = redis.call('HGETALL', taken(id))
    for at = 1, #found, 2 do  -- until now, nothing has waited for these readers
      if tonumber(string.match(found[at + 1], '%d+')) == before then
        redis.call('HSET', taken(id), found[at], text(before) .. ' ' .. text(now))
      end
    end
    local kept = first
    while kept <= last and stop - start > max_bytes do
      for _, entry in ipairs(redis.call('XRANGE', events(id), text(kept) .. '-0', '+', 'COUNT', 8)) do
        if stop - start <= max_bytes then break end
        start, kept = tonumber(entry[2][4]), kept + 1
      end
    end
    if kept > first then redis.call('XTRIM', events(id), 'MINID', '=', text(kept) .. '-0') end
    redis.call('HSET', meta(id), 'first', text(kept), 'last', text(last), 'start', text(start), 'end', text(stop))
    redis.call('PEXPIRE', events(id), math.max(redis.call('PTTL', meta(id)), 1))
  end
  return full
end

local max_bytes, appends, at = tonumber(ARGV[4]), {}, 5
while at <= #ARGV do
  local owner, number, read = ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local count = tonumber(ARGV[at + 4])
  id = ARGV[at]
  if not exists(id) or get(id, 'owner') ~= owner or get(id, 'outcome') then appends[#appends + 1] = {id}
  else appends[#appends + 1] = {id, owner, append(id, max_bytes, number, at + 5, count), read}
  end
  at = at + 5 + count
end
local renewals = {}
for _, each in ipairs(appends) do  -- after all events, because only the first write of a script can lack memory
  local owner, full, read = each[2], each[3], each[4]
  if owner then
    if read >= 0 then take(each[1], owner, read) else leave(each[1], owner) end
  end
  renewals[#renewals + 1] = owner and renewal(each[1], max_bytes, full) or false
end
return renewals
"""

END = """
local owner, outcome = ARGV[5], ARGV[6]
if get(id, 'owner') == owner and not get(id, 'outcome') then
  finish(id, (get(id, 'stop') and outcome ~= 'failed') and 'stopped' or outcome)
end
"""

STOP = """
if not exists(id) then return -1 end
if look(id) then return 0 end
write_without_memory(id)
redis.call('HSET', meta(id), 'stop', 1)
return 1
"""

ADOPT = """
local owner, last = ARGV[5], tonumber(ARGV[6])
if not exists(id) then return -1 end
local outcome = look(id)
if tonumber(get(id, 'last')) ~= last then return 0 end
if not outcome and get(id, 'owner') == owner then return 1 end  -- a retry of the same call succeeds
if outcome ~= 'lost' then return 0 end
redis.call('XDEL', events(id), get(id, 'last') .. '-' .. get(id, 'ends'))
redis.call('HDEL', meta(id), 'outcome')
redis.call('HSET', meta(id), 'owner', owner)
redis.call('ZREM', prefix .. 'ended', id)
renew(id)
return 1
"""

REMOVE = """
local found = exists(id)
remove(id)
return found and 1 or 0
"""

OUTCOME = """
if not exists(id) then return {'unknown'} end
return {look(id) or '', tonumber(get(id, 'last'))}
"""

READ = """
local after, page, page_bytes, reader = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8]
if not exists(id) then return {'unknown'} end
local outcome = look(id)
take(id, reader, after)
local first, last = unpack(redis.call('HMGET', meta(id), 'first', 'last'))
first, last = tonumber(first), tonumber(last)
first = math.max(after + 1, first)
local found, size, from, whole = {}, 0, text(first) .. '-0', false
while not whole do
  local entries = redis.call('XRANGE', events(id), from, '+', 'COUNT', 16)
  whole = #entries < 16
  for _, entry in ipairs(entries) do
    if entry[2][1] == 'event' then
      size = size + #entry[2][2]
      if #found == page or (#found > 0 and size > page_bytes) then
        whole = true
        break
      end
      found[#found + 1] = entry[2][2]
    end
    from = '(' .. entry[1]
  end
end
local complete = first + #found > last
return {complete and outcome or '', first, found}
"""

BEAT = """
for at = 4, #ARGV, 2 do
  if exists(ARGV[at]) then beat(ARGV[at], ARGV[at + 1]) end
end
"""

LEAVE = """
if leave(id, ARGV[5]) then
  local ended = redis.call('ZSCORE', prefix .. 'ended', id)
  local last_sign = ended and tonumber(ended) / 1000 or tonumber(get(id, 'renewed_at')) + lease
  expire(id, math.max(last_sign + keep - now, 1))  -- the reader may have kept it longer
end
"""


class RedisStreamLog:
    """A stream log in Redis, which replicas and applications on any number of clusters share.

    ```python
    log = RedisStreamLog("redis://redis.example:6379/0")
    ```

    It needs the extra `redis` and a Redis server from version 6.2 on; Redis Cluster is not supported. Turn on
    `appendonly`, so that streams survive a restart of the server, and set `maxmemory-policy noeviction`. With
    `appendfsync always`, they also survive if the server is killed. With `everysec`, the default, it may lose the
    events of the last two seconds, and a stream that has lost events ends with an event of the type `error`.

    A call whose connection fails is retried for about 10 seconds, and so a restart of the server is survived. After
    that it raises an error of the package redis, a `redis.exceptions.RedisError`. A stream that cannot be renewed for
    `lease_s` is lost: set `lease_s` above the longest outage that a stream should survive.

    Every key has a time to live: `keep_s` after the end of a stream, and `lease_s + keep_s` after the last renewal of
    an active one. Use an object in one event loop only.

    A reader that waits for events holds a connection, for at most 2 seconds at a time. Four connections are reserved
    for other calls. If `max_connections - 4` readers of this process wait already, the others look for new events
    about every 0.25 seconds.
    """

    def __init__(
        self,
        url_or_client: "str | Redis",
        *,
        prefix: str = "app-toolkit:stream:",
        limits: StreamLimits | None = None,
        max_connections: int = 64,
    ) -> None:
        """Nothing is connected before the first call.

        Parameters:
            url_or_client: URL of the server (`redis://`, `rediss://`, `unix://`), or a client of `redis.asyncio`. A
                client keeps its own retries and its own pool, and `aclose` leaves it open. Its socket timeout must be
                above 2 seconds, and `decode_responses` off.
            prefix: The beginning of all keys. Logs with different prefixes share nothing. Default: app-toolkit:stream:.
            limits: The limits. `max_total_bytes` is not used: set `maxmemory` of the server, at which generators wait
                and new streams get 503. All processes that share a log must have the same limits. Default:
                `StreamLimits()`.
            max_connections: Connections of this process at most, from 8 on. Not used if a client is given. Default: 64.

        Raises:
            ConfigError: The package redis is missing, the URL is invalid, `max_connections` is below 8, or the client
                has less connections or decodes responses.
        """
        self._limits = limits or StreamLimits()
        self._prefix = prefix
        self._owns_client = isinstance(url_or_client, str)
        self._client = _connected(url_or_client, max_connections) if isinstance(url_or_client, str) else url_or_client
        pool = self._client.connection_pool
        if pool.max_connections < MIN_CONNECTIONS:
            raise ConfigError(f"RedisStreamLog: {pool.max_connections} connections: must be at least {MIN_CONNECTIONS}")
        if pool.connection_kwargs.get("decode_responses"):
            raise ConfigError("RedisStreamLog: the client must not have decode_responses=True: events are bytes")
        self._blocking = asyncio.Semaphore(pool.max_connections - RESERVED)
        self._scripts = {
            body: self._client.register_script(PRELUDE + body)
            for body in (BEGIN, APPEND, END, STOP, ADOPT, REMOVE, OUTCOME, READ, BEAT, LEAVE)
        }
        self._readers: dict[str, str] = {}
        """The stream of each reader of this process."""
        self._beating: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Close the connections. Close the readers first."""
        await self._stop_beating()
        if self._owns_client:
            await self._client.aclose()

    async def begin(self, stream: str, owner: str, media_type: str, key: str | None) -> None:
        names = () if key is None else (key,)
        limits = self._limits
        try:
            answer = await self._run(
                BEGIN, stream, owner, media_type, limits.max_streams, limits.max_unread_streams, *names
            )
        except ResponseError as error:
            if "maxmemory" in str(error):
                raise StreamLogFull("the events of active streams fill the stream log: Redis has no memory") from error
            raise
        if answer == b"exists":
            raise StreamActive(f"there is a stream {stream!r} already")
        if answer == b"active":
            raise StreamActive(f"the stream of {key!r} has not ended")
        if answer == b"unread":
            raise too_many_unread(limits)
        if answer == b"full":
            raise too_many_streams(limits)

    async def append(self, appends: Sequence[Append]) -> list[Renewal | None]:
        renewals: list[Renewal | None] = []
        for start in range(0, len(appends), PAIRS):
            arguments: list[str | int | bytes] = [self._limits.max_bytes]
            for append in appends[start : start + PAIRS]:
                read = -1 if append.read is None else append.read
                arguments += (append.stream, append.owner, append.first, read, len(append.events), *append.events)
            renewals += [None if reply is None else _renewal(reply) for reply in await self._run(APPEND, *arguments)]
        return renewals

    async def end(self, stream: str, owner: str, outcome: Outcome) -> None:
        await self._run(END, stream, owner, outcome)

    async def stop(self, stream: str) -> bool:
        return _known(stream, await self._run(STOP, stream)) == 1

    async def adopt(self, stream: str, owner: str, last: int) -> bool:
        return _known(stream, await self._run(ADOPT, stream, owner, last)) == 1

    async def remove(self, stream: str) -> bool:
        return bool(await self._run(REMOVE, stream))

    async def find(self, key: str) -> str | None:
        stream = cast(bytes | None, await _reply_of(self._client.get(f"{self._prefix}key:{key}")))
        return None if stream is None else stream.decode()

    async def media_type(self, stream: str) -> str:
        media_type = await _reply_of(cast(Any, self._client.hget(f"{self._prefix}meta:{stream}", "media_type")))
        if media_type is None:
            raise _unknown(stream)
        return str(media_type.decode())

    async def outcome(self, stream: str, after: int) -> Outcome | None:
        outcome, *last = await self._run(OUTCOME, stream)
        if not last:
            raise _unknown(stream)
        return None if last[0] > after else _outcome(outcome)

    async def last(self, stream: str) -> int:
        last = await _reply_of(cast(Any, self._client.hget(f"{self._prefix}meta:{stream}", "last")))
        if last is None:
            raise _unknown(stream)
        return int(last)

    async def follow(self, stream: str, after: int) -> AsyncGenerator[Page, None]:
        reader = secrets.token_hex(8)
        self._readers[reader] = stream
        try:
            while True:
                page = await self._page(stream, after, reader)
                if page.events or page.evicted or page.outcome is not None:
                    after = page.first + len(page.events) - 1
                    self._beat()
                    yield page
                    if page.outcome is not None:
                        return
                else:
                    await self._wait(stream, after)
        finally:
            await self._leave(stream, reader)

    async def _page(self, stream: str, after: int, reader: str) -> Page:
        outcome, *values = await self._run(READ, stream, after, PAGE, PAGE_BYTES, reader)
        if not values:
            raise _unknown(stream)
        first, events = values
        return Page(first, tuple(events), _outcome(outcome), evicted=first > after + 1)

    async def _wait(self, stream: str, after: int) -> None:
        """Wait until an event follows number `after`, or the stream ends, but not for long."""
        try:
            async with asyncio.timeout(POLL_S):
                await self._blocking.acquire()
        except TimeoutError:
            return
        try:
            key = f"{self._prefix}events:{stream}"
            await _reply_of(self._client.xread({key: f"{after}-0"}, count=1, block=int(BLOCK_S * 1_000)))
        finally:
            self._blocking.release()

    def _beat(self) -> None:
        """Let the readers of this process give signs of life, also while their clients do not take what they get."""
        if self._beating is None:
            self._beating = asyncio.create_task(self._keep_beating(), name="app-toolkit stream readers")

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(BEAT_S)
            pairs = [(stream, reader) for reader, stream in self._readers.items()]
            try:
                for start in range(0, len(pairs), PAIRS):
                    await self._run(BEAT, *(text for pair in pairs[start : start + PAIRS] for text in pair))
            except RedisError as error:
                logger.warning("the readers of %d streams gave no sign of life: %s", len(pairs), error)

    async def _stop_beating(self) -> None:
        if self._beating is not None:
            beating, self._beating = self._beating, None
            beating.cancel()
            await asyncio.wait([beating])

    async def _leave(self, stream: str, reader: str) -> None:
        del self._readers[reader]
        # Starlette cancels every `await` of a response whose client has left. The shield lets these two finish.
        with suppress(RedisError), anyio.move_on_after(LEAVE_S, shield=True):
            if not self._readers:
                await self._stop_beating()
            await self._run(LEAVE, stream, reader)

    async def _run(self, body: str, *arguments: str | int | bytes) -> Any:
        """Run a script."""
        limits = self._limits
        common = (self._prefix, int(limits.lease_s * 1_000), int(limits.keep_s * 1_000))
        return await _reply_of(self._scripts[body](args=[*common, *arguments]))


def _connected(url: str, max_connections: int) -> "Redis":
    retry = Retry(ExponentialBackoff(cap=LAST_RETRY_S, base=FIRST_RETRY_S), RETRIES)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=max_connections,
            timeout=CONNECTION_WAIT_S,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=SOCKET_TIMEOUT_S,
            retry=retry,
            retry_on_error=[NoConnection, Late, BusyLoadingError],
        )
    except ValueError:  # its message may have a part of the password
        raise ConfigError(
            "RedisStreamLog: the URL of the server is invalid: it must begin with redis://, rediss:// or unix://, and "
            "special characters of a password must be percent-encoded"
        ) from None
    return Redis.from_pool(pool)


async def _reply_of(call: Awaitable[Any]) -> Any:
    """Return the result of a call.

    The package redis sends with `asyncio.wait_for`, which in Python 3.11 ignores a cancellation that comes when the
    command has just been sent. It is raised here.
    """
    task = asyncio.current_task()
    before = 0 if task is None else task.cancelling()
    result = await call
    if task is not None and task.cancelling() > before:
        raise asyncio.CancelledError
    return result


def _unknown(stream: str) -> StreamUnknown:
    return StreamUnknown(f"there is no stream {stream!r}")


def _known(stream: str, reply: int) -> int:
    """Return the reply of a script. Raises `StreamUnknown`."""
    if reply == -1:
        raise _unknown(stream)
    return reply


def _renewal(reply: Sequence[int]) -> Renewal:
    stop, unread_ms, last, room, full = reply
    return Renewal(stop == 1, unread_ms / 1_000, last, room, full == 1)


def _outcome(text: bytes) -> Outcome | None:
    return cast(Outcome, text.decode()) if text else None
