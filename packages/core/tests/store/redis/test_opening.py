"""What is said when a Redis cannot be a store, and that no message shows a password."""

import asyncio
import logging
import socket
from collections.abc import Generator
from uuid import uuid4

import pytest

from leyden.core.errors import StoreError, UsageError
from leyden.core.store.open import open_store
from leyden.core.store.redis import opening, scripts
from leyden.core.store.redis.connection import RedisLink, address_of, connected
from leyden.core.store.redis.store import RedisStore
from leyden.core.testing.servers.redis_server import NO_REDIS, PROGRAM, RedisServer
from leyden.core.testing.store_contract.shared import counts_of

needs_redis = pytest.mark.skipif(PROGRAM is None, reason=NO_REDIS)
SECRET = "a-secret-password"


@pytest.fixture(scope="module")
def redis() -> Generator[RedisServer]:
    with RedisServer({"requirepass": SECRET}, has_port=True) as server:
        yield server


@pytest.fixture
def link(redis: RedisServer) -> Generator[RedisLink]:
    link = connected(address_of(uri_of(redis, "any")))
    yield link
    link.drop()


def uri_of(redis: RedisServer, namespace: str) -> str:
    return redis.tcp_uri(f":{SECRET}@", f"?namespace={namespace}")


async def refusal(uri: str) -> str:
    with pytest.raises(UsageError) as caught:
        await open_store(uri)
    assert SECRET not in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("uri", "part"),
    [
        ("redis://host:port/0", "cannot be read"),
        ("redis://host:6379/zero", "'zero' of the Redis store is not a number"),
        ("redis://host/0?namspace=a", "'namspace' is not an option"),
        ("redis://host/0?namespace=a*", "'a*' is not a name"),
        ("redis://host/0?volatile=yes", "it must be allow or refuse"),
        (f"redis://:{SECRET}@host:99999999/0", "cannot be read"),
        (f"redis://user:{SECRET}", "cannot be read"),
    ],
)
async def test_a_uri_that_cannot_be_read(uri: str, part: str) -> None:
    assert part in await refusal(uri)


def test_an_address_shows_no_password() -> None:
    for uri in (
        f"redis://:{SECRET}@host/3",
        f"rediss://user:{SECRET}@host:1/3",
        f"redis+unix://:{SECRET}@/a/socket?db=3",
    ):
        address = address_of(uri)
        assert SECRET not in f"{address} {address!r}" and address.database == 3
    assert str(address_of(f"rediss://user:{SECRET}@host:1/3")) == "rediss://host:1/3"


async def test_no_server() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        assert f"cannot reach Redis at redis://127.0.0.1:{port}/0" in await refusal(f"redis://:x@127.0.0.1:{port}")
    assert "cannot reach Redis at redis+unix:///no/such" in await refusal("redis+unix:///no/such/socket")


@needs_redis
async def test_a_wrong_password_or_none(redis: RedisServer) -> None:
    assert "refuses the login; the URI's user or password is wrong or missing" in await refusal(
        redis.tcp_uri(f":not-{SECRET}@")
    )
    assert "refuses the login; the URI's user or password is wrong or missing" in await refusal(redis.tcp_uri())


@needs_redis
async def test_no_message_of_a_store_shows_its_password(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with RedisServer({"requirepass": SECRET}, has_port=True) as server:
        store = await open_store(uri_of(server, "a"), patience=0.0)
        await store.enqueue_rollout(1)
        server.kill()
        with pytest.raises(StoreError) as caught:
            await store.enqueue_rollout(1)
        await store.close()
    assert f"redis://127.0.0.1:{server.port}/0" in str(caught.value)
    assert SECRET not in f"{caught.value} {store!r} {vars(store)} {caplog.text}"


@needs_redis
async def test_a_redis_that_is_too_old(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "OLDEST", (99, 1))
    assert "Leyden needs 99.1 or newer" in await refusal(uri_of(redis, "old"))


@needs_redis
@pytest.mark.parametrize("uri", ["right", "none", "wrong"])
async def test_a_store_that_is_refused_leaves_no_connection(
    redis: RedisServer, link: RedisLink, monkeypatch: pytest.MonkeyPatch, uri: str
) -> None:
    monkeypatch.setattr(opening, "OLDEST", (99, 1))
    uris = {"right": uri_of(redis, "old"), "none": redis.tcp_uri(), "wrong": redis.tcp_uri(f":not-{SECRET}@")}
    with pytest.raises(UsageError) as caught:
        await open_store(uris[uri])
    async with asyncio.timeout(20):
        while len(link.call("CLIENT", "LIST").splitlines()) > 1:
            await asyncio.sleep(0.01)
    assert caught.value.__traceback__ is not None, "what it holds is not collected meanwhile"


@needs_redis
@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"appendonly": "no"}, "set `appendonly yes`"),
        ({"maxmemory": "100mb", "maxmemory-policy": "allkeys-lru"}, "(maxmemory-policy allkeys-lru)"),
    ],
)
async def test_a_redis_that_may_lose_what_it_is_told_is_refused_unless_that_is_wanted(
    settings: dict[str, str], part: str
) -> None:
    with RedisServer(settings) as server:
        assert part in await refusal(server.uri())
        store = await open_store(f"{server.uri()}&volatile=allow")
        assert store.capabilities["durable"] is (settings.get("appendonly") != "no")
        assert (await store.enqueue_rollout(1)).status == "queuing"
        await store.close()


@needs_redis
async def test_a_redis_without_memory_refuses_whole_commits() -> None:
    with RedisServer({"maxmemory": "3mb"}) as server:
        store = await open_store(server.uri())
        before = await counts_of(store)
        with pytest.raises(StoreError, match=r"used memory > 'maxmemory'$"):
            while True:
                await store.enqueue_rollout("x" * 100_000)
                before = await counts_of(store)
        assert await counts_of(store) == before
        await store.close()


@needs_redis
async def test_a_newer_store_and_foreign_keys_are_refused_and_left_alone(redis: RedisServer, link: RedisLink) -> None:
    newer, foreign, wrong = (uuid4().hex for _ in range(3))
    link.call("SET", f"leyden:{newer}:schema", str(scripts.VERSION + 1))
    assert "a newer version of Leyden" in await refusal(uri_of(redis, newer))
    link.call("SET", f"leyden:{foreign}:queue", "mine")
    assert f"has keys under leyden:{foreign}: that do not belong" in await refusal(uri_of(redis, foreign))
    link.call("LPUSH", f"leyden:{wrong}:schema", "mine")
    assert "that do not belong to a store of Leyden" in await refusal(uri_of(redis, wrong))
    assert link.call("KEYS", f"leyden:{foreign}:*") == [f"leyden:{foreign}:queue".encode()]


@needs_redis
async def test_stores_of_several_namespaces_and_others_keys_do_not_meet(redis: RedisServer, link: RedisLink) -> None:
    link.call("SET", "mine", "1")
    first, second = [await open_store(uri_of(redis, name)) for name in ("one", "two")]
    await first.enqueue_rollout(1)
    assert (await second.statistics())["total_rollouts"] == 0
    assert [key for key in link.call("KEYS", "*") if not key.startswith(b"leyden:")] == [b"mine"]
    await first.close()
    await second.close()


@needs_redis
async def test_an_answer_waits_for_the_file_that_is_still_to_be_written(
    redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await RedisStore.open(uri_of(redis, uuid4().hex))
    link = store._write_link  # pyright: ignore[reportPrivateUsage] - Redis cannot be told to be slow
    run, call, looks = link.run, link.call_connected, iter([b"aof_pending_bio_fsync:1", b"aof_pending_bio_fsync:0"])

    def late(script: str, *arguments: bytes | str) -> object:
        answer = run(script, *arguments)
        return answer.replace(b"done", b"wait") if script == scripts.COMMIT else answer

    monkeypatch.setattr(link, "run", late)

    def told(*command: bytes | str) -> object:
        return next(looks) if command[0] == "INFO" else call(*command)

    monkeypatch.setattr(link, "call_connected", told)
    await store.enqueue_rollout(1)
    assert list(looks) == []
    await store.close()
