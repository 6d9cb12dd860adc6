"""API keys: the file of hashes, the look-up, the rate limits and ``sm new-key``."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sm.server.access import keys
from sm.server.access.keys import (
    ApiKey,
    KeyFileError,
    NginxConnection,
    RateLimits,
    RepeatedKeyError,
    TokenBucket,
    presented_key,
)
from tests.support.sm_command import run_sm_here

FILE = Path("keys")
HASH = "sha256:" + "0" * 64


def test_a_key_file_has_comments_names_hashes_and_limits() -> None:
    text = f"# callers\n\nalice {HASH}\nbob\tsha256:{'1' * 64} rate=2.5 burst=7 # slow\n"
    assert keys.parse(text.encode(), FILE) == [
        ApiKey("alice", bytes(32)),
        ApiKey("bob", b"\x11" * 32, 2.5, 7),
    ]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("# nothing\n", ""),
        ("trireme_the-key-itself\n", "line 1"),
        (f"alice {HASH}\nalice sha256:{'1' * 64}\n", "line 2"),
        (f"alice {HASH}\nbob {HASH}\n", "line 2"),
        (f"alice {HASH[:-1]}\n", "line 1"),
        *(
            (f"alice {HASH} {option}\n", "line 1")
            for option in ("rate=fast", "rate=-1", "rate=nan", "burst=0", "burst=1.5", "more=1")
        ),
        (f'a"b {HASH}\n', "line 1"),
        ("\x00\xff\n", "line 1"),
    ],
)
def test_an_invalid_key_file_is_refused_by_its_line_number(text: str, line: str) -> None:
    with pytest.raises(KeyFileError, match=line or None) as raised:
        keys.parse(text.encode("latin-1"), FILE)
    assert "the-key-itself" not in str(raised.value)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_parsed_or_refused(content: bytes) -> None:
    try:
        assert keys.parse(content, FILE)
    except KeyFileError as error:
        assert str(error).startswith("keys")


def test_a_path_that_is_missing_too_large_or_not_a_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"#" * (keys.MAX_FILE_BYTES + 1))
    for name in ("none", "fifo", "large"):
        with pytest.raises(KeyFileError, match=name):
            keys.read_file(tmp_path / name)


def test_only_the_whole_key_is_accepted() -> None:
    generated = {f"n{number}": keys.generate() for number in range(50)}
    lines = "\n".join(keys.format_line(name, key) for name, key in generated.items())
    ring = keys.by_hash(keys.parse(lines.encode(), FILE))
    for name, key in generated.items():
        api_key = keys.find(ring, key.encode())
        assert (api_key and api_key.name, len(key)) == (name, len(keys.KEY_PREFIX) + 43)
        assert keys.find(ring, key[:-1].encode()) is None
    assert keys.find(ring, b"") is keys.find(ring, b"x" * 100_000) is None
    assert len(set(generated.values())) == 50


@pytest.mark.parametrize(
    ("head", "key"),
    [
        (b"GET / HTTP/1.1\r\nX-Api-Key: k", b"k"),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer k", b"k"),
        (b"GET / HTTP/1.1\r\nAuthorization: bEARER   k ", b"k"),
        (b"GET / HTTP/1.1\r\nAuthorization: Bearer a\r\nX-Api-Key: b", b"b"),
        (b"GET / HTTP/1.1\r\nAuthorization: Basic k", None),
        (b"GET / HTTP/1.1\r\nHost: a", None),
        (b"", None),
    ],
)
def test_the_key_is_read_from_either_header(head: bytes, key: bytes | None) -> None:
    assert presented_key(head) == key


@pytest.mark.parametrize(
    "name", ["X-Api-Key: ", "x-api-key:", "Authorization: Bearer ", "authorization: Basic "]
)
@pytest.mark.parametrize("values", [("a", "b"), ("a", "a"), ("", "a")])
def test_a_header_of_a_key_may_be_there_once(name: str, values: tuple[str, str]) -> None:
    lines = "\r\n".join(f"{name}{value}" for value in values)
    with pytest.raises(RepeatedKeyError):
        presented_key(f"GET / HTTP/1.1\r\nHost: a\r\n{lines}\r\n".encode())


def test_the_checker_reads_split_and_repeated_requests_on_one_connection(tmp_path: Path) -> None:
    async def talk() -> None:
        path = str(tmp_path / "s")
        server = await asyncio.get_running_loop().create_unix_server(
            lambda: NginxConnection(lambda head: b"<%s>" % head), path
        )
        async with server:
            reader, writer = await asyncio.open_unix_connection(path)
            for head in (b"one", b"two: lines\r\nmore"):
                for piece in (head, b"\r\n", b"\r\n"):
                    writer.write(piece)
                    await asyncio.sleep(0.05)
                assert await reader.read(100) == b"<%s>" % head
            writer.write(b"x" * 10 * 2**16)  # a head without an end
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
            writer.close()

    asyncio.run(talk())


def test_a_bucket_gives_a_burst_then_its_rate() -> None:
    bucket = TokenBucket(rate=2.0, burst=3, now=0.0)
    assert [bucket.take(0.0) for _ in range(4)] == [0, 0, 0, 0.5]
    assert bucket.take(0.4) == pytest.approx(0.1)
    assert [bucket.take(0.5), bucket.take(0.5)] == [0, 0.5]
    assert [bucket.take(100.0) for _ in range(4)] == [0, 0, 0, 0.5]


def test_a_key_has_its_own_limits_or_those_of_the_settings() -> None:
    now = 0.0
    limits = RateLimits(rate=2.0, clock=lambda: now)
    limits.replace_keys([ApiKey("a", b"1"), ApiKey("b", b"2", rate=0.0), ApiKey("c", b"3", rate=4.0)])
    requests_allowed = {
        name: next(count for count in range(100) if count == 50 or limits.seconds_to_wait(name))
        for name in "abc"
    }
    assert requests_allowed == {"a": 2, "b": 50, "c": 4}


def test_reading_the_key_file_again_grants_no_new_burst() -> None:
    limits = RateLimits(rate=2.0, clock=lambda: 0.0)
    for _ in range(3):
        limits.replace_keys([ApiKey("a", b"1")])
    assert [limits.seconds_to_wait("a") for _ in range(3)] == [0, 0, 1]
    limits.replace_keys([ApiKey("a", b"1")])
    assert limits.seconds_to_wait("a") == 1
    limits.replace_keys([ApiKey("a", b"1", rate=5.0)])
    assert limits.seconds_to_wait("a") == 0


def test_new_key_prints_the_key_once_and_writes_its_hash_to_the_file(tmp_path: Path) -> None:
    keys_file, command = tmp_path / FILE, ("new-key", "--file", FILE)
    first = run_sm_here(*command, "alice", cwd=tmp_path)
    second = run_sm_here(*command, "bob", "--rate", "2", "--burst", "5", cwd=tmp_path)
    assert keys_file.stat().st_mode & 0o777 == 0o600
    ring = keys.by_hash(keys.parse(keys_file.read_bytes(), keys_file))
    found = [keys.find(ring, completed.stdout.strip().encode()) for completed in (first, second)]
    assert [key and (key.name, key.rate, key.burst) for key in found] == [
        ("alice", None, None),
        ("bob", 2, 5),
    ]
    content = keys_file.read_text()
    assert first.stdout.strip() not in content + first.stderr
    for name in ("alice", "a b"):
        assert run_sm_here(*command, name, cwd=tmp_path).returncode == 1
    assert keys_file.read_text() == content


def test_new_key_without_a_file_prints_the_key_and_its_line() -> None:
    _, key, _, *line = run_sm_here("new-key", "alice", cwd=Path()).stdout.split()
    (api_key,) = keys.parse(" ".join(line).encode(), FILE)
    assert keys.find(keys.by_hash([api_key]), key.encode()) == api_key
