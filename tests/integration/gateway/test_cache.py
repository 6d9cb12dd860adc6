"""The gateway's cache of answers is bounded in bytes and age."""

from __future__ import annotations

from chalicelib.cache import MAX_AGE_S, Cache


def test_the_least_recently_used_answer_is_evicted() -> None:
    cache = Cache(10)
    cache.put("a", b"aaaa")
    cache.put("b", b"bbbb")
    assert cache.get("a") == b"aaaa"
    cache.put("c", b"cccc")
    assert [cache.get(name) for name in "abc"] == [b"aaaa", None, b"cccc"]


def test_an_answer_larger_than_the_cache_is_not_stored_and_evicts_nothing() -> None:
    cache = Cache(4)
    cache.put("a", b"aaaa")
    cache.put("b", b"bbbbb")
    assert [cache.get(name) for name in "ab"] == [b"aaaa", None]


def test_an_answer_expires() -> None:
    now = [0.0]
    cache = Cache(10, lambda: now[0])
    cache.put("a", b"a")
    now[0] = MAX_AGE_S
    assert cache.get("a") == b"a"
    now[0] = MAX_AGE_S + 1
    assert cache.get("a") is None


def test_different_parts_that_join_to_the_same_bytes_have_different_names() -> None:
    assert Cache.name(b"ab", b"c") != Cache.name(b"a", b"bc")
