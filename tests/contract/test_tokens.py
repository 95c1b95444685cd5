"""Test tokens in every kind of store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from midwatch.base.clock import SECOND
from midwatch.base.errors import Conflict
from midwatch.domain.changes import Changes, Update
from midwatch.domain.identity import OWNER, Token, create, enter, hash_of, make, revoke
from midwatch.domain.store import Store

NOW = 1_700_000_000 * SECOND


async def add(store: Store, kind: str = "api", name: str = "ci", **fields: object) -> Token:
    new_token, _ = make(kind, name, OWNER, NOW, by="owner")
    token = replace(new_token, **fields)
    await store.apply(create(token))
    return token


async def test_a_token_is_found_by_its_hash_id_and_name(store: Store) -> None:
    token, secret = make("api", "ci", OWNER, NOW, by="somebody")
    await store.apply(create(token))
    assert await store.find_token(hash_of(secret), NOW) == token
    assert await store.get_token(token.id) == token
    assert await store.get_token("ci") == token
    assert await store.find_token(hash_of("mw_other"), NOW) is None
    assert await store.get_token("other") is None
    event = (await store.read_events(0))[-1]
    assert (event.kind, event.actor, event.payload["name"], event.payload["role"]) == (
        "token_created",
        "somebody",
        "ci",
        "owner",
    )
    assert secret not in repr(event)
    assert token.hash not in repr(event)


async def test_tokens_are_listed_newest_first(store: Store) -> None:
    first = await add(store, id="k_1")
    second = await add(store, "browser", id="k_2")
    assert await store.list_tokens() == [second, first]


async def test_a_name_is_unique_among_live_tokens(store: Store) -> None:
    first = await add(store)
    with pytest.raises(Conflict):
        await add(store)
    await add(store, "browser")
    await add(store, "link")
    await store.apply(revoke(first, NOW, "owner"))
    second = await add(store)
    assert await store.get_token("ci") == second
    assert (await store.get_token(first.id)).revoked_at == NOW


async def test_a_hash_is_never_reused(store: Store) -> None:
    first = await add(store, "browser")
    with pytest.raises(Conflict):
        await add(store, "browser", hash=first.hash)


async def test_a_token_is_revoked_once(store: Store) -> None:
    token = await add(store)
    await store.apply(revoke(token, NOW + 1, "owner"))
    with pytest.raises(Conflict):
        await store.apply(revoke(token, NOW + 2, "owner"))
    assert (await store.get_token(token.id)).revoked_at == NOW + 1
    assert [event.kind for event in await store.read_events(0)] == ["token_created", "token_revoked"]


async def test_a_link_used_concurrently_signs_in_once(store: Store) -> None:
    link = await add(store, "link")
    browsers = [make("browser", "browser", OWNER, NOW, by="owner")[0] for _ in range(8)]
    done = await asyncio.gather(*(store.apply(enter(browser, link)) for browser in browsers), return_exceptions=True)
    assert sorted(type(outcome).__name__ for outcome in done) == ["Conflict"] * 7 + ["NoneType"]
    winner = browsers[done.index(None)]
    assert [token.id for token in await store.list_tokens() if token.kind == "browser"] == [winner.id]
    assert [event.payload["token_id"] for event in await store.read_events(0) if event.kind == "signed_in"] == [
        winner.id
    ]


@pytest.mark.parametrize(
    ("fields", "known"),
    [({}, True), ({"revoked_at": NOW}, False), ({"expires_at": NOW}, False), ({"expires_at": NOW + 1}, True)],
)
async def test_a_token_ends_with_its_root_token(store: Store, fields: dict[str, int], known: bool) -> None:
    root = await add(store, **fields)
    browser = await add(store, "browser", root=root.id)
    assert (await store.find_token(browser.hash, NOW) == browser) is known


async def test_a_token_with_a_missing_root_is_unknown(store: Store) -> None:
    browser = await add(store, "browser", root="k_gone")
    assert await store.find_token(browser.hash, NOW) is None


async def test_live_links_and_browsers_are_counted_per_actor(store: Store) -> None:
    await add(store)
    await add(store, "browser")
    await add(store, "link")
    await add(store, "browser", actor="other")
    await add(store, "browser", revoked_at=NOW)
    await add(store, "browser", expires_at=NOW)
    assert await store.count_tokens("owner", NOW) == 2


async def test_tokens_that_ended_long_ago_are_pruned(store: Store) -> None:
    remaining = [
        await add(store),
        await add(store, "browser", expires_at=NOW),
        await add(store, name="other", revoked_at=NOW),
    ]
    await add(store, "browser", expires_at=NOW - 1)
    await add(store, name="third", revoked_at=NOW - 1)
    assert await store.prune_tokens(NOW) == 2
    assert {token.id for token in await store.list_tokens()} == {token.id for token in remaining}


async def test_the_last_use_is_stored(store: Store) -> None:
    token = await add(store)
    update = Update("token", token.id, {"last_used_at": NOW}, {"last_used_at": None})
    await store.apply(Changes(updates=(update,)))
    assert (await store.get_token(token.id)).last_used_at == NOW
    with pytest.raises(Conflict):
        await store.apply(Changes(updates=(update,)))
