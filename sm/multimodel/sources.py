"""Where models come from: S3, HTTPS or an archive, fetched into the cache.

What is in the cache is complete: a file or folder gets its name when all of it is there. Names are digests of
where something is from and which version it is, so a second start fetches only what has changed.

``python -m sm.multimodel.sources SOURCE CACHE`` prints its progress, and at the end the repository as JSON;
``… --list SOURCE`` the names of the folders below a prefix in S3.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import sys
import tarfile
import tempfile
import time
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from sm.errors import StartError
from sm.multimodel.downloads import (
    CHUNK_BYTES,
    CONNECTIONS,
    PART,
    Interrupted,
    Part,
    Progress,
    Remote,
    Report,
    download,
)
from sm.repository.cache import sha256
from sm.tracing.variables import are_traces_on

#: Seconds.
CONNECT_TIMEOUT_S, READ_TIMEOUT_S = 5, 6
#: Attempts of a request to S3, but for those of a download, which repeats them itself.
S3_ATTEMPTS = 2
#: Seconds after which an interrupted download is removed, and for which a folder stays that no box uses: one
#: may be about to.
PART_LIFE_S, MIN_IDLE_S = 7 * 86_400, 60
#: Files and folders of one archive, as in multi-model mode.
MAX_ENTRIES = 100_000
ARCHIVE = ".tar.gz"
HUB = "hf://"
REMOTE = ("s3://", "https://", HUB)
#: What is fetched of a repository of the hub that is not a Triton repository: what a start can serve.
CHECKPOINT = (
    *("*.json", "*.txt", "model.onnx*", "onnx/model.onnx*"),
    *("*encoder_model.onnx*", "*decoder_model.onnx*"),
)
NO_HEADERS: Mapping[str, str] = {}


def is_source(text: str) -> bool:
    """True if ``text`` must be fetched, unpacked or joined: anything but one folder."""
    return "://" in text or text.endswith(ARCHIVE) or ("," in text and not Path(text).is_dir())


def is_prefix(source: str) -> bool:
    """True if ``source`` is a prefix in S3, whose folders can be listed and fetched one by one."""
    return source.startswith("s3://") and not source.endswith(ARCHIVE) and "," not in source


def shown(source: str) -> str:
    """Return a source without what may be secret: the user of a URL, and the signature in its query."""
    return re.sub(r"(?<=://)[^/@,]*@|\?[^#,]*", "", source)


class Sources:
    """Model repositories below ``root``, which several boxes may share."""

    def __init__(self, root: Path, report: Report) -> None:
        self._root, self._report = root, report
        self._objects, self._folders, self._scratch = (
            root / name for name in ("objects", "folders", "scratch")
        )
        #: Files and folders of this fetch.
        self._used: set[Path] = set()
        #: Bytes that came over the network, and that were removed to make room.
        self.fetched_bytes = self.removed_bytes = 0

    def fetch(self, source: str) -> Path:
        """Return the folder with the content of ``source``; commas join several.

        Raises:
            StartError: It cannot be fetched or read. The cache then holds only what a next start can use.
        """
        try:
            with self._locked():
                folders = [self._use(self._fetch_one(part.strip())) for part in source.split(",")]
                return folders[0] if len(folders) == 1 else self._use(self._join(folders))
        except OSError as error:
            raise StartError(f"{shown(source)} cannot be fetched: {error}.") from None

    def remove_leftovers(self) -> None:
        """Remove what a killed fetch has left, unless another box fetches now: it has done so."""
        with contextlib.suppress(OSError), self._locked(wait=False):
            pass

    def _use(self, folder: Path) -> Path:
        """Note that a folder is used now."""
        if folder.is_relative_to(self._folders):
            top = self._folders / folder.relative_to(self._folders).parts[0]
            os.utime(top)
            self._used.add(top)
        return folder

    def _fetch_one(self, source: str) -> Path:
        try:
            if source.startswith("s3://"):
                return self._fetch_s3(source)
            if source.startswith("https://"):
                return self._fetch_https(source)
            if source.startswith(HUB):
                return self._fetch_hub(source)
        except Interrupted as error:
            raise StartError(f"{shown(source)} cannot be fetched: {error}.") from None
        if "://" in source:
            raise StartError(f"{shown(source)} does not start with {', '.join(REMOTE)}.")
        if source.endswith(ARCHIVE):
            return self._unpacked(sha256(Path(source)), source, lambda: Path(source))
        return Path(source).absolute()

    def _join(self, folders: list[Path]) -> Path:
        """Return a folder with links to all that is in the folders."""
        places: dict[str, Path] = {}
        for path in (path for folder in folders for path in sorted(folder.iterdir())):
            if path.name in places:
                raise StartError(f"{path} and {places[path.name]} are two models of one name.")
            if not path.name.startswith("."):
                places[path.name] = path
        target = self._folders / _digest(*map(str, places.values()))
        if not target.is_dir():
            folder = Path(tempfile.mkdtemp(dir=self._scratch))
            for name, path in places.items():
                (folder / name).symlink_to(path)
            folder.rename(target)
        return target

    @contextlib.contextmanager
    def _locked(self, wait: bool = True) -> Iterator[None]:
        """Admit one process at a time. What it finds half-fetched is of a dead one."""
        for folder in (self._objects, self._folders):
            folder.mkdir(parents=True, exist_ok=True)
        with (self._root / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    raise
                self._report(f"waiting for another process that fetches into {self._root}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            self._remove_leftovers()
            self._scratch.mkdir()
            try:
                yield
            finally:
                self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove what nobody can go on with, and what nobody has gone on with for long."""
        shutil.rmtree(self._scratch, ignore_errors=True)
        for part in self._objects.glob("*" + PART):
            if time.time() - part.stat().st_mtime > PART_LIFE_S:
                part.unlink()

    def _fetch_s3(self, source: str) -> Path:
        with opened_s3(source) as (s3, bucket, key):
            if not key.endswith(ARCHIVE):
                return self._fetch_prefix(s3, bucket, prefix_of(key), source)
            head = s3.head_object(Bucket=bucket, Key=key)
            entry = {"Key": key, "ETag": head["ETag"], "Size": head["ContentLength"]}
            return self._unpacked(
                _digest(bucket, key, head["ETag"]),
                source,
                lambda: self._download_s3(s3, bucket, [entry])[key],
            )

    def _fetch_prefix(self, s3: Any, bucket: str, prefix: str, source: str) -> Path:
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        entries = [entry for page in pages for entry in page.get("Contents", ())]
        entries = [entry for entry in entries if not entry["Key"].endswith("/")]
        if not entries:
            raise StartError(f"There is no object below {source}.")
        names = {entry["Key"]: entry["Key"].removeprefix(prefix) for entry in entries}
        _check_names(source, names.values())
        target = self._folders / _digest(source, *(f"{entry['Key']} {entry['ETag']}" for entry in entries))
        if not target.is_dir():
            files = self._download_s3(s3, bucket, entries)
            self._link({names[key]: file for key, file in files.items()}, target)
        return target

    def _link(self, files: Mapping[str, Path], target: Path) -> None:
        """Make a folder of files in the cache, by their paths in the folder."""
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        for name, file in files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            os.link(file, place)
        folder.rename(target)

    def _fetch_hub(self, source: str) -> Path:
        try:
            from huggingface_hub import HfApi, get_token, hf_hub_url
        except ImportError:
            raise StartError(
                f"{source} needs huggingface_hub, which is not installed: pip install huggingface_hub."
            ) from None
        name, _, revision = source.removeprefix(HUB).partition("@")
        try:
            info = HfApi().model_info(
                name, revision=revision or None, files_metadata=True, timeout=READ_TIMEOUT_S
            )
        except Exception as error:  # the library's own classes, and those of its HTTP client
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise StartError(f"{source} cannot be fetched: {reason.rstrip('.')}.") from None
        found = info.siblings or []
        if not any(fnmatch(file.rfilename, "*/config.pbtxt") for file in found):
            found = [file for file in found if any(fnmatch(file.rfilename, name) for name in CHECKPOINT)]
        _check_names(source, [file.rfilename for file in found])
        target = self._folders / _digest(HUB, name, str(info.sha))
        if not target.is_dir():
            token = get_token()
            secrets = {"Authorization": f"Bearer {token}"} if token else {}
            remotes = {}
            for file in found:
                # A commit's files never change.
                version = file.lfs.sha256 if file.lfs else str(file.blob_id)
                url = hf_hub_url(name, file.rfilename, revision=info.sha)
                read = functools.partial(read_https, url, "", secrets)
                place = self._objects / _digest(HUB, version)
                remotes[file.rfilename] = Remote(place, version, file.size or 0, read)
            self._download(list(remotes.values()))
            # The folder has the name of the model.
            folder = name.rpartition("/")[2]
            self._link({f"{folder}/{path}": remote.file for path, remote in remotes.items()}, target)
        return target / name.rpartition("/")[2]

    def _download_s3(self, s3: Any, bucket: str, entries: list[dict[str, Any]]) -> dict[str, Path]:
        """Download the objects that the cache lacks, in the versions that the list has."""
        files = {
            entry["Key"]: self._objects / _digest(bucket, entry["Key"], entry["ETag"]) for entry in entries
        }
        remotes = []
        for entry in entries:
            key, etag = entry["Key"], entry["ETag"]
            read = functools.partial(read_s3, s3, {"Bucket": bucket, "Key": key, "IfMatch": etag})
            remotes.append(Remote(files[key], etag, entry["Size"], read))
        self._download(remotes)
        return files

    def _download(self, remotes: Sequence[Remote]) -> None:
        """Download the objects that the cache lacks."""
        missing = {remote.file: remote for remote in remotes if not remote.file.is_file()}
        parts = [Part(remote) for remote in missing.values()]
        self._used.update(remote.file for remote in remotes)
        self._used.update(part.path for part in parts)
        self._make_room(sum(part.left for part in parts))
        self.fetched_bytes += download(parts, self._report)

    def _fetch_https(self, source: str) -> Path:
        url, _, wanted = source.partition("#sha256=")
        if wanted and not re.fullmatch(r"[0-9a-f]{64}", wanted):
            raise StartError(
                f"{shown(source)} must end with #sha256= and 64 hexadecimal digits, or without it."
            )
        if wanted and self._archive_folder(wanted).is_dir():
            return self._archive_folder(wanted)
        try:
            with opened(url, {"Range": "bytes=0-0"}) as answer:
                etag = answer.headers["ETag"] or ""
                version = etag or answer.headers["Last-Modified"] or ""
                _, _, size = answer.headers.get("Content-Range", "").partition("/")
                identity = wanted or (_digest(url, version) if version else "")
                if identity and self._archive_folder(identity).is_dir():
                    return self._archive_folder(identity)
                if etag.startswith('"') and size.isdecimal():
                    file = self._objects / _digest(url, etag)
                    read = functools.partial(read_https, url, etag, NO_HEADERS)
                    self._download([Remote(file, etag, int(size), read)])
                elif answer.status == HTTPStatus.OK:
                    file = self._save(answer)
                else:
                    with opened(url) as whole:
                        file = self._save(whole)
        except (OSError, http.client.HTTPException) as error:
            raise StartError(f"{shown(url)} cannot be fetched: {error}.") from None
        if wanted and sha256(file) != wanted:
            file.unlink()
            raise StartError(f"{shown(url)} has another SHA-256 than {wanted}.")
        return self._unpacked(identity or sha256(file), source, lambda: file)

    def _save(self, answer: http.client.HTTPResponse) -> Path:
        """Download from a server that sends no ranges of a known version."""
        size = int(answer.headers["Content-Length"] or 0)
        self._make_room(size)
        file, progress = self._scratch / "object", Progress(self._report, size)
        with file.open("wb") as output:
            # read1 returns what has come, so that the progress of a slow host is seen.
            while chunk := answer.read1(CHUNK_BYTES):
                output.write(chunk)
                progress.add(len(chunk))
        self.fetched_bytes += progress.done
        if size and progress.done != size:
            raise Interrupted(f"it ended after {progress.done:,} of {size:,} bytes")
        return file

    def _archive_folder(self, identity: str) -> Path:
        return self._folders / _digest("archive", identity)

    def _unpacked(self, identity: str, source: str, get: Callable[[], Path]) -> Path:
        """Return the content of an archive of regular files and folders; ``get`` returns the archive."""
        source, target = shown(source), self._archive_folder(identity)
        if target.is_dir():
            return target
        archive = get()
        self._report(f"unpacking {source}")
        folder = Path(tempfile.mkdtemp(dir=self._scratch))
        try:
            with tarfile.open(archive, "r|gz") as tar:
                for count, member in enumerate(tar):
                    if count >= MAX_ENTRIES:
                        raise StartError(f"{source} has more than {MAX_ENTRIES:,} files and folders.")
                    if not (member.isreg() or member.isdir()):
                        raise StartError(f"{source}: {member.name!r} is not a regular file or folder.")
                    self._make_room(member.size)
                    tar.extract(member, folder, filter="data")
        except (tarfile.TarError, EOFError, zlib.error, OSError) as error:
            raise StartError(f"{source} cannot be unpacked: {error}.") from None
        folder.rename(target)
        if archive.parent == self._objects:
            archive.unlink()
        return target

    def _make_room(self, size: int) -> None:
        """Remove what no box uses, the least recently used first, until ``size`` bytes are free."""
        free = shutil.disk_usage(self._root).free
        if size <= free:
            return
        self._remove_orphans()
        for folder in self._idle_folders():
            if size <= shutil.disk_usage(self._root).free:
                break
            shutil.rmtree(folder.rename(self._scratch / folder.name))
            self._remove_orphans()
        now_free = shutil.disk_usage(self._root).free
        self.removed_bytes += max(now_free - free, 0)
        if size > now_free:
            raise StartError(
                f"{size / 1e6:,.0f} MB are to be fetched into {self._root}, which has "
                f"{now_free / 1e6:,.0f} MB."
            )

    def _remove_orphans(self) -> None:
        """Remove the files that are in no folder, but for those of this fetch."""
        for file in self._objects.iterdir():
            if file not in self._used and file.stat().st_nlink == 1:
                file.unlink()

    def _idle_folders(self) -> Iterator[Path]:
        """Yield the folders that no box uses, the least recently used first."""
        used = {folder: folder.stat().st_mtime for folder in self._folders.iterdir()}
        for folder in sorted(used, key=lambda folder: used[folder]):
            if folder not in self._used and time.time() - used[folder] > MIN_IDLE_S and not _is_held(folder):
                yield folder


@contextlib.contextmanager
def held(repository: Path, root: Path) -> Iterator[None]:
    """Keep a repository that was fetched into ``root`` from being removed to make room."""
    folders = root.resolve() / "folders"
    places = [path.resolve() for path in (repository, *repository.iterdir())]
    names = {place.relative_to(folders).parts[0] for place in places if place.is_relative_to(folders)}
    with contextlib.ExitStack() as stack:
        for name in names:
            file = os.open(folders / name, os.O_RDONLY)
            stack.callback(os.close, file)
            fcntl.flock(file, fcntl.LOCK_SH)
        yield


def _is_held(folder: Path) -> bool:
    file = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(file)
    return False


@contextlib.contextmanager
def opened(
    url: str, headers: Mapping[str, str] = NO_HEADERS, secrets: Mapping[str, str] = NO_HEADERS
) -> Iterator[http.client.HTTPResponse]:
    """Yield the answer of an HTTP server. A host that it redirects to does not get the secret headers."""
    request = urllib.request.Request(url, headers=dict(headers))  # noqa: S310 - http or https
    for name, value in secrets.items():
        request.add_unredirected_header(name, value)
    with urllib.request.urlopen(request, timeout=READ_TIMEOUT_S) as answer:  # noqa: S310
        if url.startswith("https://") and not answer.url.startswith("https://"):
            raise StartError(f"{shown(url)} leads to an address without TLS.")
        yield answer


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
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, HTTPError) and not _is_passing(error.code):
            raise StartError(f"{shown(url)} cannot be fetched: {error}.") from None
        raise Interrupted(str(error) or type(error).__name__) from None


def read_s3(s3: Any, request: Mapping[str, str], start: int, end: int) -> Iterator[bytes]:
    """Yield a range of one version of an object."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        answer = s3.get_object(**request, Range=f"bytes={start}-{end - 1}")
        if not _has_range(answer.get("ContentRange"), start, end):
            raise StartError(f"s3://{request['Bucket']}/{request['Key']}: its host sends no ranges.")
        with contextlib.closing(answer["Body"]) as body:
            while chunk := body.read(CHUNK_BYTES):
                yield chunk
    except (BotoCoreError, ClientError) as error:
        if isinstance(error, ClientError) and not _is_passing(
            error.response["ResponseMetadata"]["HTTPStatusCode"]
        ):
            raise
        raise Interrupted(str(error)) from None


def _is_passing(status: int) -> bool:
    """True if the host is too busy, or broken for now."""
    return status == HTTPStatus.TOO_MANY_REQUESTS or status >= HTTPStatus.INTERNAL_SERVER_ERROR


def _check_names(source: str, names: Iterable[str]) -> None:
    for name in names:
        if any(part in ("", ".", "..") for part in name.split("/")):
            raise StartError(f"{source} has an object {name!r}, which is not the path of a file.")


def _has_range(header: str | None, start: int, end: int) -> bool:
    return (header or "").startswith(f"bytes {start}-{end - 1}/")


@contextlib.contextmanager
def opened_s3(source: str) -> Iterator[tuple[Any, str, str]]:
    """Yield a client of S3, the bucket and the key; its errors become a :class:`StartError`."""
    try:
        from boto3 import client
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        raise StartError(
            f"{source} needs boto3, which is not installed: pip install 'trireme-serving[s3]'."
        ) from None
    for name in ("boto3", "botocore", "urllib3"):  # they log signatures at lower levels
        logging.getLogger(name).setLevel(logging.ERROR)
    config = Config(
        connect_timeout=CONNECT_TIMEOUT_S,
        read_timeout=READ_TIMEOUT_S,
        retries={"mode": "standard", "total_max_attempts": S3_ATTEMPTS},
        max_pool_connections=CONNECTIONS,
    )
    bucket, _, key = source.removeprefix("s3://").partition("/")
    try:
        yield client("s3", config=config), bucket, key
    except (BotoCoreError, ClientError) as error:
        raise StartError(f"{source} cannot be fetched: {error}.") from None


def prefix_of(key: str) -> str:
    """Return the prefix of the objects in a folder."""
    return f"{key.rstrip('/')}/" if key else ""


def list_folders(source: str) -> list[str]:
    """Return the names of the folders below a prefix in S3."""
    with opened_s3(source) as (s3, bucket, key):
        prefix = prefix_of(key)
        pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix, Delimiter="/")
        found = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", ())]
        return sorted(name.removeprefix(prefix).rstrip("/") for name in found)


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def main(arguments: Sequence[str]) -> int:
    """Fetch a source for the supervisor, which reads the lines and knows the last by the exit code."""

    def say(line: str) -> None:
        sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    source, root = arguments
    began = time.time_ns()
    sources = Sources(Path(root), say)
    try:
        if source == "--list":
            say(json.dumps(list_folders(root)))
            return 0
        repository = sources.fetch(source)
    except StartError as error:
        say(str(error))
        return 1
    if are_traces_on(os.environ):
        # Imported only here, as it brings OpenTelemetry.
        from sm.tracing.exporter import write_span

        write_span("fetch", began, {"trireme.source": shown(source), "trireme.bytes": sources.fetched_bytes})
    result = {"bytes": sources.fetched_bytes, "removed_bytes": sources.removed_bytes}
    say(json.dumps({"repository": str(repository), **result}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
