"""Create API keys, keep their hashes in a file, and look them up in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

#: So that a leaked key is recognised, by people and by secret scanners.
KEY_PREFIX = "trireme_"
KEY_RANDOM_BYTES = 32
#: Longer credentials are refused without being hashed.
MAX_KEY_BYTES = 512
#: About 40,000 keys. The file is read whole, and every key may have a rate limit in memory.
MAX_FILE_BYTES = 4 * 2**20
MAX_RATE = 1_000_000.0
#: A name stands in the log and in a header as it is.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LINE = re.compile(r"(?P<name>\S+)\s+sha256:(?P<hash>[0-9a-f]{64})(?P<options>(\s+[a-z]+=\S+)*)")
FORM = "NAME sha256:HASH, then rate=N and burst=N if wanted"


class KeyFileError(ValueError):
    """The file cannot be used. The sentence never shows what is in it: that may be a key."""


@dataclass(frozen=True)
class ApiKey:
    """A line of the file."""

    name: str
    sha256: bytes
    #: Requests per second, 0 for no limit; None: as the settings say.
    rate: float | None = None
    #: Requests at once; None: as the settings say.
    burst: int | None = None


def read_file(path: Path) -> bytes:
    """The file's content; :class:`KeyFileError` if it cannot be read or is too large."""
    if path.exists() and not path.is_file():  # a fifo would be waited for
        raise KeyFileError(f"{path} is not a file")
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KeyFileError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_FILE_BYTES:
        raise KeyFileError(f"{path} is larger than {MAX_FILE_BYTES} bytes")
    return content


def parse(content: bytes, path: Path) -> list[ApiKey]:
    """The keys of a file's content; :class:`KeyFileError` names ``path`` and the line."""
    keys: dict[str, ApiKey] = {}
    hashes: set[bytes] = set()
    for number, line in _lines(content):
        where = f"{path}, line {number}"
        key = _parse_line(line, where)
        if key.name in keys or key.sha256 in hashes:
            raise KeyFileError(f"{where}: this name or hash is in the file already")
        keys[key.name] = key
        hashes.add(key.sha256)
    if not keys:
        raise KeyFileError(f"{path} has no key; make one with: sm new-key NAME --file {path}")
    return list(keys.values())


def _lines(content: bytes) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, without blank ones and comments."""
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if text:
            yield number, text


def _parse_line(line: str, where: str) -> ApiKey:
    found = LINE.fullmatch(line)
    if found is None or not NAME.fullmatch(found["name"]):
        raise KeyFileError(f"{where}: a line is {FORM}")
    options = dict(word.split("=", 1) for word in found["options"].split())
    try:
        rate = _number(options.pop("rate", None), 0.0)
        burst = _number(options.pop("burst", None), 1.0)
    except ValueError as error:
        raise KeyFileError(f"{where}: {error}") from None
    if options or (burst is not None and burst != int(burst)):
        raise KeyFileError(f"{where}: a line is {FORM}")
    return ApiKey(found["name"], bytes.fromhex(found["hash"]), rate, None if burst is None else int(burst))


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


class KeyRing:
    """Keys by what callers present.

    The index is keyed with a secret of this process, so that the time of a look-up says nothing of the hashes
    that are stored, and does not grow with their number.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys = {self._index(key.sha256): key for key in keys}

    def find(self, presented: bytes) -> ApiKey | None:
        """The key that a caller presents; None if there is no such key."""
        if len(presented) > MAX_KEY_BYTES:
            return None
        digest = hashlib.sha256(presented).digest()
        key = self._keys.get(self._index(digest))
        return key if key is not None and hmac.compare_digest(key.sha256, digest) else None

    def _index(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def generate() -> str:
    """A new key: 256 random bits. That much cannot be guessed, so that one SHA-256 of it is enough."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)


def format_line(name: str, key: str, rate: float | None = None, burst: int | None = None) -> str:
    """The line for the file."""
    options = [f"rate={rate:g}"] if rate is not None else []
    if burst is not None:
        options.append(f"burst={burst}")
    return " ".join([name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", *options])
