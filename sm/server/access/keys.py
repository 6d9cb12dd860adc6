"""Create API keys, keep their hashes in a file, and look them up in constant time."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


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
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), 1):
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


class KeyRing:
    """Finds keys by what callers present.

    The index is keyed with a secret of this process. So the time of a look-up reveals nothing of the stored
    hashes, and does not grow with their number.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        self._secret = secrets.token_bytes(32)
        self._keys = {self._index(key.sha256): key for key in keys}

    def find(self, presented: bytes) -> ApiKey | None:
        """Return the key that a caller presents; None if it is unknown."""
        if len(presented) > MAX_KEY_BYTES:
            return None
        digest = hashlib.sha256(presented).digest()
        key = self._keys.get(self._index(digest))
        return key if key is not None and hmac.compare_digest(key.sha256, digest) else None

    def _index(self, digest: bytes) -> bytes:
        return hashlib.blake2b(digest, key=self._secret, digest_size=16).digest()


def generate() -> str:
    """Create a key of 256 random bits, which cannot be guessed; so a single SHA-256 protects it."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_RANDOM_BYTES)


def format_line(name: str, key: str, rate: float | None = None, burst: int | None = None) -> str:
    """Format the line for the file."""
    options = [f"rate={rate:g}"] if rate is not None else []
    if burst is not None:
        options.append(f"burst={burst}")
    return " ".join([name, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}", *options])
