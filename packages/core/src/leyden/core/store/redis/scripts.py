"""Lua scripts with which a store reads and writes Redis, and the names of its keys.

Redis runs a script without interruption, and appends all its changes to its file together. `READ` therefore returns
data of one moment, and `COMMIT` is a transaction: it checks that all data on which the transaction is based are
unchanged, and then makes every change, or none.

A rollout with its attempts is one hash, and so is a worker. Field `v` of each is the id of the commit that wrote it
last.
"""

from collections.abc import Sequence
from typing import NamedTuple, TypeVar

import msgspec

T = TypeVar("T")

VERSION = 2
"""Version of the format, kept in the key `schema`; a store written by a newer version is refused."""

Command = Sequence[str]
"""A command of Redis, or `EACH` or `SIZE`."""


class HealthCheckDue(Exception):
    """The health check must write first."""


class StaleData(Exception):
    """Data on which a transaction is based have changed, so it must be repeated."""


class RedisKeys:
    """Names of keys. Keys of single objects end in an id; the others have no colon after the prefix."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.schema = f"{prefix}schema"
        self.serial = f"{prefix}serial"
        """Counter for all that is created or queued, which gives the positions in the order of creation."""
        self.counts = f"{prefix}counts"
        """Hash: numbers of attempts and spans."""
        self.rollouts = f"{prefix}rollouts"
        """Sorted set of ids by position.

        So are `workers`, and `resources_ids`, by the position of the last version.
        """
        self.workers = f"{prefix}workers"
        self.resources_ids = f"{prefix}shelf"
        self.resources = f"{prefix}resources"
        """Hash: `v` and the row of the resources stored last."""
        self.usual_queue = f"{prefix}queue"
        """Sorted set of the ids of the rollouts that wait in the usual queue by position; see `queue`."""
        self.held = f"{prefix}held"
        """Hash of reserved rollouts: which store is about to claim each, and until when others skip it."""
        self.deadlines = f"{prefix}deadlines"
        """Sorted set of rollout ids by deadline in Unix time."""
        self.rollout = f"{prefix}rollout:"
        """Hash of each rollout."""
        self.spans = f"{prefix}spans:"
        """List of each rollout's spans in the order in which they were stored."""
        self.span_ids = f"{prefix}span-ids:"
        """Set of the ids of each rollout's spans, each after the number of its attempt."""
        self.worker = f"{prefix}worker:"
        """Hash of each worker."""
        self.open = f"{prefix}open:"
        """Sorted set of each worker's open attempts by position."""
        self.versions = f"{prefix}versions:"
        """Hash of the versions of each id of resources."""
        self.runs = f"{prefix}runs"
        """Sorted set of the ids of runs by position."""
        self.run = f"{prefix}run:"
        """Hash of each run."""
        self.steps = f"{prefix}steps:"
        """Sorted set of each run's steps by number; the metrics of a step are under `metrics`."""
        self.metrics = f"{prefix}metrics:"
        self.policy_versions = f"{prefix}policy-versions"
        """Sorted set of policy versions by position; with `:` and a run's id, that of the run's own versions.

        Each version is one value under `policy_version`.
        """
        self.policy_version = f"{prefix}policy-version:"
        self.request = f"{prefix}request:"
        """Result of each request with an id."""
        self.last = f"{prefix}last:"
        """Number of the last commit of a store, and its answer."""

    def status(self, status: str) -> str:
        """Return the sorted set of the ids of the rollouts in a status by position."""
        return f"{self.prefix}status:{status}"

    def queue(self, queue: str) -> str:
        """Return the sorted set of the ids of the rollouts that wait in a queue, by place in the queue."""
        return f"{self.usual_queue}:{queue}" if queue else self.usual_queue

    def rollouts_of(self, queue: str) -> str:
        """Return the sorted set of the ids of all rollouts of a queue by position."""
        return f"{self.rollouts}:{queue}"


# Arguments: key of the deadlines, current time or nothing, commands. Answers {1} where the health check must write
# first.
READ = """
if ARGV[2] ~= '' and #redis.call('ZRANGEBYSCORE', ARGV[1], '-inf', ARGV[2], 'LIMIT', 0, 1) > 0 then
    return {1}
end
local function members(sets, within, first, last)
    if #sets == 1 and within == '' then
        return redis.call('ZRANGE', sets[1], first, last)
    end
    local all, ids = {}, {}
    for _, set in ipairs(sets) do
        local flat
        if within == '' then
            flat = redis.call('ZRANGE', set, 0, last, 'WITHSCORES')
        else
            flat = redis.call('ZINTER', 2, set, within, 'AGGREGATE', 'MIN', 'WITHSCORES')
        end
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
    if command[1] == 'SIZE' then
        -- Two sorted sets, of which the common members are counted.
        found[i] = #redis.call('ZINTER', 2, command[2], command[3])
    elseif command[1] == 'EACH' then
        -- First and last place, prefix of the keys, sorted sets as one text, a sorted set that has all members or
        -- nothing, command, and what it wants after the key.
        local sets, rows = {}, {}
        for set in string.gmatch(command[5], '%S+') do
            sets[#sets + 1] = set
        end
        for j, id in ipairs(members(sets, command[6], tonumber(command[2]), tonumber(command[3]))) do
            rows[j] = {id, redis.call(command[7], command[4] .. id, unpack(command, 8))}
        end
        found[i] = rows
    else
        found[i] = redis.call(unpack(command))
    end
end
return {0, found}
"""

# Arguments: keys of the deadlines, the queue and the reserved rollouts; prefix of rollouts; current time or nothing;
# limit; the store's name; milliseconds of the reservation. Answers the first queued rollouts that no other store has
# reserved, and reserves them.
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

# Arguments: keys of the version, of all rollouts and of those in the usual queue; the new version. A store of version 1
# has no named queues, so all its rollouts are in the usual one.
UPGRADE = """
if redis.call('GET', ARGV[1]) == '1' then
    redis.call('ZUNIONSTORE', ARGV[3], 1, ARGV[2])
    redis.call('SET', ARGV[1], ARGV[4])
end
"""

# Arguments: keys of the deadlines, the serial and the last commit of this store; number of the commit; current time or
# nothing; channel; message or nothing; head; then the arguments of all commands one after the other. Answers the
# result: `due`, `stale`, `done`, or `wait` where it is done but the file is not yet written; the last two with the
# first serial. Where the commit is not made, or was made before, the items that the same transaction appended to lists
# are removed again.
COMMIT = """
-- A plain search, since a pattern costs more than the rest of a small commit.
local function waits()
    local found = redis.call('INFO', 'persistence')
    local _, at = string.find(found, 'aof_pending_bio_fsync:', 1, true)
    return at and string.sub(found, at + 1, at + 1) ~= '0'
end
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

FIRST_ARGUMENT = 9
"""Index of the first argument of a commit's commands, counted from 1."""
MOST_ARGUMENTS = 1000
"""Largest number of arguments of a command, since Lua cannot pass many thousands."""


def chunks(items: Sequence[T]) -> list[Sequence[T]]:
    """Return `items` in parts that Lua can pass."""
    if len(items) <= MOST_ARGUMENTS:
        return [items] if items else []
    return [items[start : start + MOST_ARGUMENTS] for start in range(0, len(items), MOST_ARGUMENTS)]


class CommitMessage(NamedTuple):
    """Arguments and commands that are sent for a commit."""

    arguments: Sequence[bytes | str]
    """Arguments of the script."""
    ahead: Sequence[Sequence[bytes | str]] = ()
    """Commands that Redis runs in the same transaction, right before the script."""


class CommitHead(msgspec.Struct, frozen=True, array_like=True):
    """Description of a commit's arguments."""

    checks: list[tuple[str, str]]
    """Keys, each with the version that it must have; "" where it must not exist."""
    absent: list[list[str]]
    """Keys of sets, each with members that must be absent before the commit, and are added by it."""
    lengths: list[int]
    """Number of arguments of each command."""
    serials: list[int]
    """Indexes of the arguments that are relative to the first serial of this commit."""
    fresh: int
    """Number of serials that it takes."""
    asks_file: bool
    """Whether to answer if the file is not yet written."""
    ahead: list[tuple[str, int]]
    """Keys of lists, each with the number of items that the same transaction appended."""
