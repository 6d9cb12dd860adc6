"""The addresses that models come from, and what S3, an HTTPS server or the hub has there now."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.client
import re
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote_to_bytes, urlsplit, urlunsplit

from sm import entry_points
from sm.errors import NotReady, StartError
from sm.http.s3 import SCHEME, S3Uri, is_passing, open_client, to_trireme_error
from sm.models.fetch.downloads import CHUNK_BYTES, CONNECTIONS, BrokenConnection, Remote

#: Seconds.
READ_TIMEOUT_S = 6
ARCHIVE = ".tar.gz"
S3, HTTPS, HUB = SCHEME, "https://", "hf://"
#: The door of other kinds of addresses. A row is how they begin, and a function that lists what is there now:
#: of the address, to a :class:`Listing`. It may raise :class:`StartError`.
GROUP = "sm.addresses"
REMOTE = (S3, HTTPS, HUB)
NO_HEADERS: Mapping[str, str] = {}
FIRST_BYTE = {"Range": "bytes=0-0"}


def is_source(text: str) -> bool:
    """True if ``text`` must be fetched, unpacked or joined: anything but one folder."""
    return "://" in text or text.endswith(ARCHIVE) or ("," in text and not Path(text).is_dir())


def is_prefix(source: str) -> bool:
    """True if ``source`` is a prefix in S3, whose folders can be listed and fetched one by one."""
    return source.startswith(S3) and not source.endswith(ARCHIVE) and "," not in source


#: A URL's user and password, which end at the last @. A host and a port alone do not match. A URL that was
#: made a path has one slash instead of two.
USER = re.compile(r"(\w:/{1,2}(?!/))(?![\w.\[\]-]+(?::\d*)?(?:[/?#,\s'\"]|$))[^?#,\s'\"]*@")
#: Text in the place of a port that is not a port: a password, if the @ was forgotten.
PASSWORD = re.compile(r"(\w:/{1,2}(?!/)[\w.-]*):(?!\d*(?:[/?#,\s'\"]|$))[^/?#,\s'\"]*")
#: A URL's query, which ends at the next source of a list.
QUERY = re.compile(r"(\w:/[^?#'\"\n]*)\?[^#'\"\n]*?(?=,[\w+.-]+:/|,/|[#'\"\n]|$)")


def shown(text: str) -> str:
    """Return a text without what may be secret in its URLs: the user, and the signature in a query."""
    return QUERY.sub(r"\1", PASSWORD.sub(r"\1", USER.sub(r"\1", text)))


#: Exceptions of a fetch over HTTP, also for something that is not an address.
HTTP_ERRORS = (OSError, http.client.HTTPException, ValueError)


def explain(error: BaseException) -> str:
    """Return the reason without the address, which http.client quotes if it cannot use it."""
    if isinstance(error, http.client.InvalidURL | ValueError):
        return "the address, or what its host answers, is not valid"
    return shown(str(error)) or type(error).__name__


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class Listing:
    """The contents of an address now.

    Attributes:
        version: Another one if anything has changed.
        remotes: The objects, by their paths in the folder that they become.
        repository: The path of the model repository in that folder.
    """

    version: str
    remotes: Mapping[str, Remote]
    repository: str = ""


def listers() -> Mapping[str, Callable[[str], Listing]]:
    """Return what lists an address, by how it begins."""
    return {S3: list_s3, **dict(entry_points.load(GROUP))}


def list_s3(source: str) -> Listing:
    """List an archive, or the objects below a prefix."""
    s3, uri = _open_s3(source)
    with _s3_errors(uri):
        if source.endswith(ARCHIVE):
            head = s3.head_object(Bucket=uri.bucket, Key=uri.key)
            entries = [{"Key": uri.key, "ETag": head["ETag"], "Size": head["ContentLength"]}]
        else:
            pages = s3.get_paginator("list_objects_v2").paginate(Bucket=uri.bucket, Prefix=uri.prefix)
            found = (entry for page in pages for entry in page.get("Contents", ()))
            entries = [entry for entry in found if not entry["Key"].endswith("/")]
    if not entries:
        raise StartError(f"There is no object below {shown(source)}.")
    remotes = {}
    for entry in entries:
        key, etag = entry["Key"], entry["ETag"]
        read = functools.partial(read_s3, s3, S3Uri(uri.bucket, key), etag)
        name = key.removeprefix(uri.prefix)
        remotes[name] = Remote(digest(uri.bucket, key, etag), etag, entry["Size"], read)
    return Listing(digest(source, *(remote.name for remote in remotes.values())), checked(source, remotes))


def list_folders(source: str) -> list[str]:
    """Return the names of the folders below a prefix in S3."""
    s3, uri = _open_s3(source)
    with _s3_errors(uri):
        paginator = s3.get_paginator("list_objects_v2")
        pages = paginator.paginate(Bucket=uri.bucket, Prefix=uri.prefix, Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
    return sorted(name.removeprefix(uri.prefix).rstrip("/") for name in found)


def _open_s3(source: str) -> tuple[Any, S3Uri]:
    try:
        uri = S3Uri.parse(source)
    except ValueError as error:
        raise StartError(f"{error}.") from None
    return open_client(source, CONNECTIONS), uri


@contextlib.contextmanager
def _s3_errors(uri: S3Uri) -> Iterator[None]:
    """Raise :class:`BrokenConnection` if another attempt may succeed, else :class:`StartError`."""
    try:
        yield
    except StartError:
        raise
    except Exception as error:
        known = to_trireme_error(error, uri)
        if isinstance(known, NotReady):
            raise BrokenConnection(str(known)) from None
        raise StartError(f"{uri} cannot be fetched: {known}.") from None


def read_s3(s3: Any, uri: S3Uri, etag: str, start: int, end: int) -> Iterator[bytes]:
    """Yield a range of one version of an object."""
    wanted = f"bytes={start}-{end - 1}"
    with _s3_errors(uri):
        answer = s3.get_object(Bucket=uri.bucket, Key=uri.key, IfMatch=etag, Range=wanted)
        if not _has_range(answer.get("ContentRange"), start, end):
            raise StartError(f"{uri}: its host sends no ranges.")
        with contextlib.closing(answer["Body"]) as body:
            while chunk := body.read(CHUNK_BYTES):
                yield chunk


def checked(source: str, remotes: Mapping[str, Remote]) -> Mapping[str, Remote]:
    """Return the objects of a source. Raises :class:`StartError` for one whose name is not a file's path."""
    for name in remotes:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise StartError(f"{shown(source)} has an object {name!r}, which is not the path of a file.")
    return remotes


def find_https(url: str, answer: http.client.HTTPResponse) -> tuple[Remote | None, str]:
    """Return the object whose first byte is in the answer, and its version if the server says it.

    There is no object if the server sends no ranges of a known version.
    """
    etag = answer.headers["ETag"] or ""
    version = etag or answer.headers["Last-Modified"] or ""
    _, _, size = answer.headers.get("Content-Range", "").partition("/")
    remote = None
    if etag.startswith('"') and size.isdecimal():
        read = functools.partial(read_https, url, etag, NO_HEADERS)
        remote = Remote(digest(url, etag), etag, int(size), read)
    return remote, digest(url, version) if version else ""


def read_https(url: str, etag: str, secrets: Mapping[str, str], start: int, end: int) -> Iterator[bytes]:
    """Yield a range of one version of an object; without ``etag`` it has only one."""
    headers = {"Range": f"bytes={start}-{end - 1}", **({"If-Range": etag} if etag else {})}
    try:
        with opened(url, headers, secrets) as answer:
            has_range = _has_range(answer.headers["Content-Range"], start, end)
            if etag and not (has_range and answer.headers["ETag"] == etag):
                raise StartError(f"{shown(url)} has changed while it was fetched.")
            if not has_range:  # the hub sends small files as a whole
                answer.read(start)
            while chunk := answer.read(CHUNK_BYTES):
                yield chunk
    except HTTP_ERRORS as error:
        if isinstance(error, ValueError) or (isinstance(error, HTTPError) and not is_passing(error.code)):
            raise StartError(f"{shown(url)} cannot be fetched: {explain(error)}.") from None
        raise BrokenConnection(explain(error)) from None


@contextlib.contextmanager
def opened(
    url: str, headers: Mapping[str, str] = NO_HEADERS, secrets: Mapping[str, str] = NO_HEADERS
) -> Iterator[http.client.HTTPResponse]:
    """Yield the answer of an HTTP server. A host that it redirects to does not get the secret headers.

    A user and a password in the URL are sent as such a header (RFC 7617).
    """
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if user:
        secrets = {"Authorization": f"Basic {base64.b64encode(unquote_to_bytes(user)).decode()}", **secrets}
    address = urlunsplit(parts._replace(netloc=host, fragment=""))
    request = urllib.request.Request(address, headers=dict(headers))  # noqa: S310 - http or https
    for name, value in secrets.items():
        request.add_unredirected_header(name, value)
    with urllib.request.urlopen(request, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310
        if url.startswith(HTTPS) and not answer.url.startswith(HTTPS):
            raise StartError(f"{shown(url)} leads to an address without TLS.")
        yield answer


def _has_range(header: str | None, start: int, end: int) -> bool:
    return (header or "").startswith(f"bytes {start}-{end - 1}/")
