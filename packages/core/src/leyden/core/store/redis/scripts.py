"""The Lua scripts by which a store reads and writes Redis, and the names of its keys. Knows no states.

Redis runs a script whole, with nothing in between, and appends what it changed to its file whole. So `READ` gives a
picture of one moment, and `COMMIT` is a transaction: it looks whether everything the transaction was decided on is as
it was, and then makes every change, or none.

A rollout, with its attempts, is one hash, and a worker is one; field `v` of each names the commit that wrote it last.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

VERSION = 1
"""Kept in the key `schema`; a store written by a newer version is refused."""

Command = Sequence[str]
"""A command of Redis, or `EACH`."""


class Due(Exception):
    """The health check must write first."""


class Stale(Exception):
    """What a transaction was decided on has changed; it must be done again."""


class Keys:
    """Names of keys. Those of single things end in an id; the others have no colon after the prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.schema = f"{prefix}schema"
        self.serial = f"{prefix}serial"
        """Counts what was created and queued, so that everything has its place in the order of creation."""
        self.counts = f"{prefix}counts"
        """Hash: how many attempts and spans there are."""
        self.rollouts = f"{prefix}rollouts"
        """Sorted set of ids by place, as are `workers`, and `shelf` by the place of the last version."""
        self.workers = f"{prefix}workers"
        self.shelf = f"{prefix}shelf"
        self.resources = f"{prefix}resources"
        """Hash: `v` and the row of the resources stored last."""
        self.queue = f"{prefix}queue"
        """Sorted set of rollout ids by place."""
        self.held = f"{prefix}held"
        """Hash: who is about to claim a rollout, and until when others leave it to them."""
        self.deadlines = f"{prefix}deadlines"
        """Sorted set of rollout ids by Unix time."""
        self.rollout = f"{prefix}rollout:"
        """Hash of each rollout."""
        self.spans = f"{prefix}spans:"
        """List of each rollout's spans in the order in which they came."""
        self.span_ids = f"{prefix}span-ids:"
        """Set of the ids of each rollout's spans, after the number of their attempt."""
        self.worker = f"{prefix}worker:"
        """Hash of each worker."""
        self.open = f"{prefix}open:"
        """Sorted set of each worker's open attempts by place."""
        self.versions = f"{prefix}versions:"
        """Hash of the versions of each id of resources."""
        self.runs = f"{prefix}runs"
        """Sorted set of the ids of runs by place."""
        self.run = f"{prefix}run:"
        """Hash of each run."""
        self.steps = f"{prefix}steps:"
        """Sorted set of each run's steps by their numbers; what was measured at one is under `metrics`."""
        self.metrics = f"{prefix}metrics:"
        self.policy_versions = f"{prefix}policy-versions"
        """Sorted set of versions of policies by place, and, with a run's id, of its own; each is one value."""
        self.policy_version = f"{prefix}policy-version:"
        self.request = f"{prefix}request:"
        """What each request made that its caller had named."""
        self.last = f"{prefix}last:"
        """The number of the last commit of a store, and what it was answered."""

    def status(self, status: str) -> str:
        """Sorted set of the ids of the rollouts in a status by place."""
        return f"{self.prefix}status:{status}"


# Arguments: key of the deadlines, now or nothing, commands. Answers {1} where the health check must write first.
READ = """
if ARGV[2] ~= '' and #redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', ARGV[2], 'LIMIT', 0, 1) > 0 then
    return {1}
end
local function members(sets, first, last)
    if #sets == 1 then
        return redis.call('ZRANGE', sets[1], first, last)
    end
    local all, ids = {}, {}
    for _, set in ipairs(sets) do
        local flat = redis.call('ZRANGE', set, 0, last, 'WITHSCORES')
        for i = 1, #flat, 2 do
            all[#all + 1] = {tonumber(flat[i + 1]), flat[i]}
        end
    end
    table.sort(all, function(a, b) return a[1] < b[1] end)
    local stop = last < 0 and #all or math.min(last + 1, #all)
    for i = first + 1, stop do
        ids[#ids + 1] = all[i][2]
    end
    return ids
end
local found = {}
for i, command in ipairs(cmsgpack.unpack(ARGV[3])) do
    if command[1] == 'EACH' then
        -- First and last place, prefix of the keys, sorted sets as one text, command, and what it wants after the key.
        local sets, rows = {}, {}
        for set in string.gmatch(command[5], '%S+') do
            sets[#sets + 1] = set
        end
        for j, id in ipairs(members(sets, tonumber(command[2]), tonumber(command[3]))) do
            rows[j] = {id, redis.call(command[6], command[4] .. id, unpack(command, 7))}
        end
        found[i] = rows
    else
        found[i] = redis.call(unpack(command))
    end
end
return {0, found}
"""

# Arguments: keys of the deadlines, the queue and those held, prefix of rollouts, now or nothing, limit, who, for
# how many milliseconds. Answers the first in the queue that nobody else is about to claim, and holds them.
HOLD = """
if ARGV[5] ~= '' and #redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', ARGV[5], 'LIMIT', 0, 1) > 0 then
    return {1}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local limit, start, found = tonumber(ARGV[6]), 0, {}
while #found < limit do
    local ids = redis.call('ZRANGE', ARGV[2], start, start + limit + 15)
    if #ids == 0 then
        break
    end
    start = start + #ids
    for _, id in ipairs(ids) do
        if #found == limit then
            break
        end
        local holder = redis.call('HGET', ARGV[3], id)
        local who, till = string.match(holder or '', '^(%S+) (%d+)$')
        if not who or who == ARGV[7] or tonumber(till) <= now then
            redis.call('HSET', ARGV[3], id, ARGV[7] .. ' ' .. string.format('%.0f', now + ARGV[8]))
            found[#found + 1] = {id, redis.call('HGETALL', ARGV[4] .. id)}
        end
    end
end
return {0, found}
"""

# A plain search, as a pattern costs more than all else that a small commit does.
_WAITS = """
local function waits()
    local found = redis.call('INFO', 'persistence')
    local _, at = string.find(found, 'aof_pending_bio_fsync:', 1, true)
    return at and string.sub(found, at + 1, at + 1) ~= '0'
end
"""

# Arguments: keys of the deadlines, the serial and the last commit of this store, number of the commit, now or nothing,
# channel, message or nothing, head, and then every command's arguments one after the other. Answers what became of it:
# `due`, `stale`, `done`, or `wait` where it is done but the file is still to be written; the last two with the first
# serial. Where it is not made, or was made before, what the same transaction has put into lists goes again.
COMMIT = (
    _WAITS
    + """
local head = cmsgpack.unpack(ARGV[8])
local function commit()
local last = redis.call('GET', ARGV[3])
if last then
    local number, base = string.match(last, '^(%d+) (%d+)$')
    if tonumber(number) >= tonumber(ARGV[4]) and ARGV[4] ~= '0' then
        return 'wait ' .. base
    end
end
if ARGV[5] ~= '' and #redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', ARGV[5], 'LIMIT', 0, 1) > 0 then
    return 'due'
end
for _, check in ipairs(head[1]) do
    if (redis.call('HGET', check[1], 'v') or '') ~= check[2] then
        return 'stale'
    end
end
for _, check in ipairs(head[2]) do
    for _, known in ipairs(redis.call('SMISMEMBER', unpack(check))) do
        if known == 1 then
            return 'stale'
        end
    end
end
if #head[3] == 0 then
    return 'done 0'
end
local base = '0'
if head[5] > 0 then
    local first = redis.call('INCRBY', ARGV[2], head[5]) - head[5]
    base = string.format('%.0f', first)
    for _, at in ipairs(head[4]) do
        ARGV[at] = string.format('%.0f', first + ARGV[at])
    end
end
for _, check in ipairs(head[2]) do
    redis.call('SADD', unpack(check))
end
local from = 9
for _, length in ipairs(head[3]) do
    redis.call(unpack(ARGV, from, from + length - 1))
    from = from + length
end
redis.call('SET', ARGV[3], ARGV[4] .. ' ' .. base, 'EX', 3600)
if ARGV[7] ~= '' then
    redis.call('PUBLISH', ARGV[6], ARGV[7])
end
if head[6] and waits() then
    return 'wait ' .. base, true
end
return 'done ' .. base, true
end
local ran, answer, made = pcall(commit)
if not made then
    for _, list in ipairs(head[7]) do
        redis.call('LTRIM', list[1], 0, -1 - list[2])
    end
end
if not ran then
    error(answer)
end
return answer
"""
)

# One more span of an attempt that runs; what `COMMIT` could do as well, in half the time. Arguments: keys of the
# deadlines and the last commit of this store, number of the commit, now, rollout's key, the commits that must have
# written it last and that writes it now, the attempt's field and value, number of the span, keys of the set of ids, of
# the spans and the counts, what stands for the span, the span, whether to say if the file is still to be written.
ONE_MORE = (
    _WAITS
    + """
local last = redis.call('GET', ARGV[2])
if last and tonumber(string.match(last, '^%d+')) >= tonumber(ARGV[3]) then
    return 'wait 0'
end
if #redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', ARGV[4], 'LIMIT', 0, 1) > 0 then
    return 'due'
end
if redis.call('HGET', ARGV[5], 'v') ~= ARGV[6] or redis.call('SADD', ARGV[11], ARGV[14]) == 0 then
    return 'stale'
end
redis.call('HSET', ARGV[5], 'v', ARGV[7], ARGV[8], ARGV[9], 'counter', ARGV[10], 'tail', ARGV[10])
redis.call('RPUSH', ARGV[12], ARGV[15])
redis.call('HINCRBY', ARGV[13], 'spans', 1)
redis.call('SET', ARGV[2], ARGV[3] .. ' 0', 'EX', 3600)
if ARGV[16] == '1' and waits() then
    return 'wait 0'
end
return 'done 0'
"""
)

FIRST_ARGUMENT = 9
"""Where the arguments of a commit's commands begin, counted from 1."""
MOST_ARGUMENTS = 1000
"""Lua cannot pass many thousands of arguments at once."""


def chunks(items: Sequence[T]) -> list[Sequence[T]]:
    """Return `items` in parts that Lua can pass."""
    if len(items) <= MOST_ARGUMENTS:
        return [items] if items else []
    return [items[start : start + MOST_ARGUMENTS] for start in range(0, len(items), MOST_ARGUMENTS)]


class Message(NamedTuple):
    """What is sent for a commit."""

    arguments: Sequence[bytes | str]
    """Of the script."""
    ahead: Sequence[Sequence[bytes | str]] = ()
    """Commands that Redis makes in the same transaction, right before the script."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """What a commit says of its arguments."""

    checks: list[tuple[str, str]]
    """Keys, and the commit that must have written each last; nothing where there must be none."""
    absent: list[list[str]]
    """Keys of sets, and what must not be in each before the commit, and is in it afterwards."""
    lengths: list[int]
    """How many arguments each command has."""
    serials: list[int]
    """Which arguments are counted from the first serial of this commit."""
    fresh: int
    """How many serials it takes."""
    asks_file: bool
    """Whether to say if the file is still to be written."""
    ahead: list[tuple[str, int]]
    """Keys of lists, and how much the same transaction has put at the end of each."""
