"""The cache of answers: bounded in bytes and age."""

from __future__ import annotations

from chalicelib.cache import MAX_AGE_S, Cache


def test_the_least_recently_used_answer_makes_room() -> None:
    cache = Cache(10)
    cache.put("a", b"aaaa")
    cache.put("b", b"bbbb")
    assert cache.get("a") == b"aaaa"
    cache.put("c", b"cccc")
    assert [cache.get(name) for name in "abc"] == [b"aaaa", None, b"cccc"]


def test_an_answer_larger_than_the_cache_is_not_kept_and_drives_nothing_out() -> None:
    cache = Cache(4)
    cache.put("a", b"aaaa")
    cache.put("b", b"bbbbb")
    assert [cache.get(name) for name in "ab"] == [b"aaaa", None]


def test_an_answer_grows_old() -> None:
    now = [0.0]
    cache = Cache(10, lambda: now[0])
    cache.put("a", b"a")
    now[0] = MAX_AGE_S
    assert cache.get("a") == b"a"
    now[0] = MAX_AGE_S + 1
    assert cache.get("a") is None


def test_an_answer_put_again_counts_once() -> None:
    cache = Cache(8)
    for _ in range(3):
        cache.put("a", b"aaaa")
    cache.put("b", b"bbbb")
    assert cache.get("a") == b"aaaa"


def test_parts_that_join_to_the_same_bytes_have_different_names() -> None:
    assert Cache.name(b"ab", b"c") != Cache.name(b"a", b"bc")


def test_nothing_is_kept_unless_there_is_room() -> None:
    assert not Cache(0).on
    assert Cache(1).on
