"""The gateway's cache of answers is bounded in bytes and age."""

from __future__ import annotations

from chalicelib.cache import MAX_AGE_S, Cache


def test_the_least_recently_used_and_the_too_old_answers_are_evicted() -> None:
    now = [0.0]
    cache = Cache(10, lambda: now[0])
    cache.put("a", b"aaaa")
    cache.put("b", b"bbbb")
    cache.put("larger than the cache", b"x" * 11)
    assert cache.get("a") == b"aaaa"
    cache.put("c", b"cccc")
    assert [cache.get(name) for name in ("a", "b", "c", "larger than the cache")] == [
        b"aaaa",
        None,
        b"cccc",
        None,
    ]
    now[0] = MAX_AGE_S
    assert cache.get("a") == b"aaaa"
    now[0] = MAX_AGE_S + 1
    assert cache.get("a") is None


def test_different_parts_that_join_to_the_same_bytes_have_different_names() -> None:
    assert Cache.name(b"ab", b"c") != Cache.name(b"a", b"bc")
