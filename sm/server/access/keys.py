"""API keys: their file of hashes, look-up in constant time, rate limits, and the process that checks them.

``python -m sm.server.access.keys``: nginx sends it the two headers that may hold a key, before it reads the
request's body, and gets the key's name or a rejection. It has its own process so that a busy router, or a
slow scrape of the control plane, does not delay the check. Only nginx can reach its socket, in the box's
private run folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import os
import re
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from sm.polling import WATCH_S
from sm.run_state import Box, write_atomically
from sm.server import logs
from sm.settings import Settings


def read_bounded(path: Path, max_bytes: int, error: type[ValueError]) -> bytes:
    """Read the whole file.

    Args:
        path: the file.
        max_bytes: a longer file is refused.
        error: the class of what is raised.

    Raises:
        error: the file cannot be read, is too long, or is not a regular file. The message names the path and
            shows nothing of the content.
    """
    if path.exists() and not path.is_file():  # opening a fifo would block
        raise error(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as failure:
        raise error(f"{path} cannot be read: {failure.strerror}") from None
    if len(content) > max_bytes:
        raise error(f"{path} is larger than {max_bytes} bytes")
    return content


Content = TypeVar("Content")


class Watched(Generic[Content]):
    """Files whose content is used after each change, which is looked for every :data:`WATCH_S` seconds.

    An invalid content is reported once, and the old one stays.

    Args:
        used: The content that is in use.
        read: Returns the present content. It and ``use`` may raise ValueError or OSError.
        use: Called with each new content; again after an OSError, which may be a full disk.
        report: Called with the reason why a new content is not used.
    """

    def __init__(
        self,
        used: Content,
        read: Callable[[], Content],
        use: Callable[[Content], object],
        report: Callable[[str], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._next_look = clock, 0.0
        self._used = self._last_seen = used
        self._read, self._use, self._report = read, use, report
        self._rejected: Content | None = None
        self._last_reason = ""

    def look(self) -> None:
        """Use the content if it is new, and the same as at the last look: writing it may take a moment.

        To be called often.
        """
        if self._clock() < self._next_look:
            return
        self._next_look = self._clock() + WATCH_S
        try:
            content = self._read()
            changed, self._last_seen = content != self._last_seen, content
            if content != self._used:
                if changed or content == self._rejected:
                    return
                try:
                    self._use(content)
                except ValueError:
                    self._rejected = content
                    raise
                self._used = content
            self._rejected, self._last_reason = None, ""
        except (ValueError, OSError) as error:
            if str(error) != self._last_reason:
                self._last_reason = str(error)
                self._report(str(error))


#: A prefix by which people and secret scanners recognise a leaked key.
KEY_PREFIX = "trireme_"
KEY_RANDOM_BYTES = 32
#: Longer credentials are refused without being hashed.
MAX_KEY_BYTES = 512
#: About 40,000 keys. The file is read whole, and every key may have a rate limit in memory.
MAX_FILE_BYTES = 4 * 2**20
MAX_RATE = 1_000_000.0
#: A name is written unchanged to the log and to a header.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LINE = re.compile(r"(?P<name>\S+)\s+sha256:(?P<hash>[0-9a-f]{64})(?P<options>(\s+[a-z]+=\S+)*)")
FORM = "NAME sha256:HASH, then rate=N and burst=N if wanted"


class KeyFileError(ValueError):
    """The file cannot be used. The message never shows its content, which may be a key."""


@dataclass(frozen=True)
class ApiKey:
    """A line of the file."""

    name: str
    sha256: bytes
    #: Requests per second, 0 for no limit; None for the setting's.
    rate: float | None = None
    #: Requests at once; None for the setting's.
    burst: int | None = None


def read_file(path: Path) -> bytes:
    """Read the file. Raises :class:`KeyFileError` if it cannot be read or is too large."""
    return read_bounded(path, MAX_FILE_BYTES, KeyFileError)


def parse(content: bytes, path: Path) -> list[ApiKey]:
    """Parse the keys in a file's content. :class:`KeyFileError` names ``path`` and the line."""
    keys: dict[str, ApiKey] = {}
    hashes: set[bytes] = set()
    for number, line in _lines(content):
        location = f"{path}, line {number}"
        key = _parse_line(line, location)
        if key.name in keys or key.sha256 in hashes:
            raise KeyFileError(f"{location}: this name or hash is in the file already")
        keys[key.name] = key
        hashes.add(key.sha256)
    if not keys:
        raise KeyFileError(f"{path} has no key; make one with: sm new-key NAME --file {path}")
    return list(keys.values())


def _lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Yield numbered lines, without blank ones and comments."""
    for number, line in enumerate(content.decode("utf-8-sig", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            yield number, text


def _parse_line(line: str, location: str) -> ApiKey:
    match = LINE.fullmatch(line)
    if match is None or not NAME.fullmatch(match["name"]):
        raise KeyFileError(f"{location}: a line is {FORM}")
    options = dict(option.split("=", 1) for option in match["options"].split())
    try:
        rate = _number(options.pop("rate", None), 0.0)
        burst = _number(options.pop("burst", None), 1.0)
    except ValueError as error:
        raise KeyFileError(f"{location}: {error}") from None
    if options or (burst is not None and burst != int(burst)):
        raise KeyFileError(f"{location}: a line is {FORM}")
    return ApiKey(match["name"], bytes.fromhex(match["hash"]), rate, None if burst is None else int(burst))


def _number(text: str | None, lowest: float) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        raise ValueError("rate and burst are numbers") from None
    if not lowest <= value <= MAX_RATE:
        raise ValueError(f"rate and burst are between {lowest:g} and {MAX_RATE:g}")
    return value


def by_hash(keys: Iterable[ApiKey]) -> dict[bytes, ApiKey]:
    """Return keys by their hash."""
    return {key.sha256: key for key in keys}


def find(keys: Mapping[bytes, ApiKey], presented: bytes) -> ApiKey | None:
    """Return the key that a caller presents; None if it is unknown.

    The time of a look-up could tell of stored hashes at most. Nobody finds a key by its hash: the file itself
    may be read.
    """
    return None if len(presented) > MAX_KEY_BYTES else keys.get(hashlib.sha256(presented).digest())


def generate() -> str:
    """Create a key of 256 random bits, which cannot be guessed; so a single SHA-256 protects it."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)


def format_line(name: str, key: str, rate: float | None = None, burst: int | None = None) -> str:
    """Format the line for the file."""
    options = [f"rate={rate:g}"] if rate is not None else []
    if burst is not None:
        options.append(f"burst={burst}")
    return " ".join([name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", *options])


class TokenBucket:
    """``rate`` requests per second, and up to ``burst`` at once after a pause."""

    def __init__(self, rate: float, burst: int, now: float) -> None:
        self.rate, self.burst = rate, burst
        self._tokens, self._updated = float(burst), now

    def take(self, now: float) -> float:
        """Count a request if it is allowed. Returns the seconds to wait; 0 if it is allowed."""
        self._tokens = min(self.burst, self._tokens + (now - self._updated) * self.rate)
        self._updated = now
        if self._tokens >= 1:
            self._tokens -= 1
            return 0.0
        return (1 - self._tokens) / self.rate


class RateLimits:
    """The buckets of all keys. Their number does not depend on what callers send."""

    def __init__(self, rate: float, clock: Callable[[], float]) -> None:
        """Make no bucket yet. Keys without a rate of their own have ``rate``; 0 is no limit."""
        self._rate, self._clock = rate, clock
        self._buckets: dict[str, TokenBucket] = {}

    def replace_keys(self, keys: Iterable[ApiKey]) -> None:
        """Limit exactly these keys. A bucket keeps its tokens if its limit is unchanged."""
        now, before = self._clock(), self._buckets
        self._buckets = {}
        for key in keys:
            rate = self._rate if key.rate is None else key.rate
            if not rate:
                continue
            burst = key.burst or math.ceil(rate)
            bucket = before.get(key.name)
            same = bucket is not None and (bucket.rate, bucket.burst) == (rate, burst)
            self._buckets[key.name] = bucket if bucket and same else TokenBucket(rate, burst, now)

    def seconds_to_wait(self, name: str) -> int:
        """Count a use of the key if it is allowed. Returns whole seconds to wait; 0 if it is allowed."""
        bucket = self._buckets.get(name)
        return math.ceil(bucket.take(self._clock())) if bucket else 0


log = logging.getLogger(__name__)

BACKLOG = 1024
#: Bytes. nginx does not accept longer headers.
MAX_HEAD_BYTES = 2**17
#: The headers that may hold a key.
KEY_HEADERS = X_API_KEY, AUTHORIZATION = b"x-api-key", b"authorization"
END_OF_HEAD = b"\r\n\r\n"

NO_KEY = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n"
REPEATED_KEY = b"HTTP/1.1 403 Forbidden\r\nX-Trireme-Denial: repeated_key\r\nContent-Length: 0\r\n\r\n"
UNKNOWN_KEY = b"HTTP/1.1 403 Forbidden\r\nX-Trireme-Denial: unknown_key\r\nContent-Length: 0\r\n\r\n"


class KeyStore:
    """The keys of the file, read again when it changes."""

    def __init__(self, file: Path, copy: Path, limits: RateLimits) -> None:
        """``copy``: the last valid content of ``file``, written by the supervisor."""
        self._file, self._copy, self._limits = file, copy, limits
        content = copy.read_bytes()
        self._use(content)
        self._watched = Watched(
            content,
            lambda: read_file(file),
            self._reload,
            lambda reason: log.warning("the API keys stay as they were: %s", reason),
        )

    def look(self) -> None:
        """Use the file if it has changed."""
        self._watched.look()

    def _use(self, content: bytes) -> int:
        keys = parse(content, self._file)
        self.by_hash = by_hash(keys)
        self._limits.replace_keys(keys)
        return len(keys)

    def _reload(self, content: bytes) -> None:
        log.info("the API keys were read again: %d", self._use(content))
        try:
            # For the next start of this process: the file may be invalid by then.
            write_atomically(self._copy, content)
        except OSError as error:
            log.warning("the API keys in use could not be saved: %s", error.strerror)


def answer(store: KeyStore, limits: RateLimits, head: bytes) -> bytes:
    """Answer a request of nginx's: 204 with the key's name, 401 without a key, else 403 with the reason."""
    try:
        presented = presented_key(head)
    except RepeatedKeyError:
        return REPEATED_KEY
    if presented is None:
        return NO_KEY
    key = find(store.by_hash, presented)
    if key is None:
        return UNKNOWN_KEY
    name = key.name.encode()
    wait = limits.seconds_to_wait(key.name)
    if wait:
        return (
            b"HTTP/1.1 403 Forbidden\r\nX-Trireme-Denial: rate_limited\r\nX-Trireme-Key-Name: %s\r\n"
            b"Retry-After: %d\r\nContent-Length: 0\r\n\r\n" % (name, wait)
        )
    return b"HTTP/1.1 204 No Content\r\nX-Trireme-Key-Name: %s\r\n\r\n" % name


class RepeatedKeyError(ValueError):
    """A header that may hold the key was sent twice: which of the two counts would be anybody's guess."""


def presented_key(head: bytes) -> bytes | None:
    """Return the key in ``x-api-key``, else in ``Authorization: Bearer``; None if there is neither.

    Raises:
        RepeatedKeyError: One of the two headers is there twice.
    """
    values: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in KEY_HEADERS:
            if name in values:
                raise RepeatedKeyError
            values[name] = value.strip()
    if X_API_KEY in values:
        return values[X_API_KEY]
    scheme, _, token = values.get(AUTHORIZATION, b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else None


class NginxConnection(asyncio.Protocol):
    """Answers one connection of nginx's workers, which keep it open."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer, self._received = answer, b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer a request when its head is complete. nginx sends the next one after the answer."""
        head, end, rest = (self._received + data).partition(END_OF_HEAD)
        self._received = rest if end else head
        if end:
            self._transport.write(self._answer(head))
        elif len(head) > MAX_HEAD_BYTES:
            self._transport.close()


async def serve() -> None:
    """Serve until the supervisor ends this process."""
    settings = Settings.read(os.environ)
    box = Box.load(Path(os.environ["TRIREME_RUN_DIR"]))
    logs.configure(settings.level)
    assert settings.api_keys_file is not None
    limits = RateLimits(settings.rate_limit, time.monotonic)
    store = KeyStore(settings.api_keys_file, box.api_keys_copy, limits)
    await asyncio.get_running_loop().create_unix_server(
        lambda: NginxConnection(partial(answer, store, limits)), str(box.keys_socket), backlog=BACKLOG
    )
    while True:
        store.look()  # a change takes effect at the second look that sees it
        await asyncio.sleep(WATCH_S)


if __name__ == "__main__":
    asyncio.run(serve())
