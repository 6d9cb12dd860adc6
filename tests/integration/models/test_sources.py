"""Model repositories are fetched into a cache: complete, once, or not at all."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import shutil
import tarfile
import time
from pathlib import Path
from tarfile import DIRTYPE, FIFOTYPE, LNKTYPE, REGTYPE, SYMTYPE
from types import SimpleNamespace
from typing import Any

import pytest

from sm import entry_points
from sm.errors import StartError
from sm.models.fetch.addresses import shown
from sm.models.fetch.model_cache import CacheHolds, ModelCache, main
from tests.support.download_hosts import https_site
from tests.support.s3 import aws, client, s3_url

__all__ = ["aws", "s3_url"]


#: A member of an archive: its name; its type; what a link leads to, or a file's content.
Member = tuple[str, bytes, str]


def archive(path: Path, *members: Member, mode: int = 0o644) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.mode, member.mtime = kind, mode, 1_700_000_000
            content = text.encode() if kind == REGTYPE else b""
            member.size, member.linkname = len(content), "" if kind == REGTYPE else text
            tar.addfile(member, io.BytesIO(content))
    return path


def fetch(tmp_path: Path, source: object) -> Path:
    return ModelCache(tmp_path / "cache", print).fetch(str(source))


CONFIG: Member = ("a/config.pbtxt", REGTYPE, "text")


def test_a_second_start_fetches_only_what_has_changed(s3_url: str, tmp_path: Path) -> None:
    s3 = client(s3_url)
    for name in ("a/config.pbtxt", "a/1/model.onnx"):
        s3.put_object(Bucket="inputs", Key=f"models/{name}", Body=b"old")
    sources = ModelCache(tmp_path / "cache", print)
    first = sources.fetch("s3://inputs/models/")
    assert (first / "a/1/model.onnx").read_bytes() == b"old"
    assert sources.fetch("s3://inputs/models/") == first
    assert sources.fetched_bytes == len(b"old") * 2
    s3.put_object(Bucket="inputs", Key="models/a/1/model.onnx", Body=b"new")
    assert (sources.fetch("s3://inputs/models/") / "a/1/model.onnx").read_bytes() == b"new"
    assert sources.fetched_bytes == len(b"old") * 2 + len(b"new")
    assert (first / "a/1/model.onnx").read_bytes() == b"old"


@pytest.mark.parametrize(
    "source", ["s3://inputs/nothing/", "s3://inputs/none.tar.gz", "s3://absent/a/", "/nowhere/a.tar.gz"]
)
def test_what_does_not_exist_leaves_nothing(source: str, s3_url: str, tmp_path: Path) -> None:
    with pytest.raises(StartError):
        ModelCache(tmp_path, print).fetch(source)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["folders", "lock", "objects"]


@pytest.mark.parametrize(("mode", "unpacked"), [(0o644, 0o644), (0o6777, 0o755), (0o022, 0o600)])
def test_an_archive_is_unpacked_where_tarfile_has_no_filters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, unpacked: int
) -> None:
    """Python 3.11.2, which the CPU image has, knows none."""
    extract = tarfile.TarFile.extract

    def extract_as_old(self: Any, member: Any, path: Any = "", set_attrs: bool = True) -> None:
        extract(self, member, path, set_attrs)

    monkeypatch.setattr(tarfile.TarFile, "extract", extract_as_old)
    path = archive(tmp_path / "model.tar.gz", ("/a/1/model.py", REGTYPE, "text"), mode=mode)
    file = fetch(tmp_path, path) / "a/1/model.py"
    status = file.stat()
    assert (status.st_mode & 0o7777, status.st_mtime, file.read_text()) == (unpacked, 1.7e9, "text")


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [
        ("../out", REGTYPE, ""),
        ("a/../../out", REGTYPE, ""),
        ("../out", DIRTYPE, ""),
        ("a", SYMTYPE, "/etc/passwd"),
        ("a", FIFOTYPE, ""),
        *(("a", LNKTYPE, target) for target in ("a", "later", "../outside", "/etc/passwd", "folder")),
    ],
)
def test_a_hostile_archive_is_refused(name: str, kind: bytes, target: str, tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/outside").write_text("secret")
    members = ("folder", DIRTYPE, ""), (name, kind, target), ("later", REGTYPE, "text")
    with pytest.raises(StartError):
        fetch(tmp_path, archive(tmp_path / "model.tar.gz", *members))
    assert not list((tmp_path / "cache/folders").iterdir())


def test_hard_links_in_an_archive_are_unpacked(tmp_path: Path) -> None:
    one, link = ("a/model.onnx", REGTYPE, "one"), ("b/model.onnx", LNKTYPE, "a/model.onnx")
    # tar -r adds a newer entry of the same name, which must not change the files that were linked to the older one.
    path = archive(tmp_path / "model.tar.gz", one, link, ("a/model.onnx", REGTYPE, "another"))
    folder = fetch(tmp_path, path)
    assert [(folder / f"{name}/model.onnx").read_text() for name in "ab"] == ["another", "one"]


def test_sources_are_joined_unless_two_have_a_model_of_one_name(tmp_path: Path) -> None:
    one = archive(tmp_path / "one.tar.gz", CONFIG)
    (tmp_path / "two" / "b").mkdir(parents=True)
    sources = ModelCache(tmp_path / "cache", print)
    folder = sources.fetch(f"{one},{tmp_path / 'two'}")
    assert {path.name for path in folder.iterdir()} == {"a", "b"}
    assert (folder / "a/config.pbtxt").read_bytes() == b"text"
    (tmp_path / "two" / "c").mkdir()
    assert (sources.fetch(f"{one},{tmp_path / 'two'}") / "c").is_dir()
    (tmp_path / "two" / "a").mkdir()
    with pytest.raises(StartError):
        sources.fetch(f"{one},{tmp_path / 'two'}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "https://name:secret@host/m?signature=secret#sha256=0,s3://b/a/",
            "https://host/m#sha256=0,s3://b/a/",
        ),
        ("https://name:sec/re@t@host:8443/a", "https://host:8443/a"),
        ("https:/name:secret@host/a", "https:/host/a"),
        ("https://host:8443/a@b?x=secret", "https://host:8443/a@b"),
        ("https://h/a?x=secret,secret&y=secret,hf://o/n@r", "https://h/a,hf://o/n@r"),
        ("hf://owner/name@main", "hf://owner/name@main"),
        ("s3://bucket/a@b/c.tar.gz", "s3://bucket/a@b/c.tar.gz"),
        ("is it? 'https://u:secret@[::1]:1/a?secret' fails", "is it? 'https://[::1]:1/a' fails"),
        ("https://name:secret/a", "https://name/a"),
    ],
)
def test_what_may_be_secret_in_an_address_is_not_shown(text: str, expected: str) -> None:
    assert shown(text) == expected


@pytest.mark.parametrize(
    "source",
    [
        "https://name:secret@localhost:1/m.tar.gz",
        "https://name:secret@localhost:1/m .tar.gz?secret",
        "https://localhost:secret/m.tar.gz",
        "https://name:secret@local\u2100host/m.tar.gz",
        "https://name:secret@[localhost/m.tar.gz",
        "https://name:secret@\u00fc\u00fc..x/m.tar.gz",
        "ftp://name:secret@localhost/m.tar.gz",
        "s3://name:secret@bucket/m.tar.gz?secret",
        "s3://?secret",
    ],
)
def test_no_sentence_of_a_failed_fetch_has_a_secret(
    source: str, s3_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main((source, str(tmp_path / "cache"))) == 1
    out, err = capsys.readouterr()
    assert out.strip()
    assert "secret" not in out + err


def test_the_user_of_an_address_is_sent_as_a_header_and_to_no_other_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive(tmp_path / "m.tar.gz", CONFIG)
    with https_site(tmp_path, tmp_path, redirects={"/moved.tar.gz": "/m.tar.gz"}) as port:
        folder = fetch(tmp_path, f"https://name:sec%40ret@localhost:{port}/moved.tar.gz")
    assert (folder / "a/config.pbtxt").read_bytes() == b"text"
    basic = base64.b64encode(b"name:sec@ret").decode()
    received = (tmp_path / "access.log").read_text().splitlines()
    assert {*received} == {f"/moved.tar.gz Basic {basic}", "/m.tar.gz -"}
    assert "sec" not in capsys.readouterr().out


def test_https_is_fetched_once_and_only_with_the_right_digest(tmp_path: Path) -> None:
    content = archive(tmp_path / "m.tar.gz", CONFIG).read_bytes()
    with https_site(tmp_path, tmp_path) as port:
        url, digest = f"https://localhost:{port}/m.tar.gz", hashlib.sha256(content).hexdigest()
        sources = ModelCache(tmp_path / "cache", print)
        with pytest.raises(StartError):
            sources.fetch(f"{url}#sha256={'0' * 64}")
        folder = sources.fetch(f"{url}#sha256={digest}")
        assert sources.fetch(f"{url}#sha256={digest}") == folder
        assert sources.fetch(url) == sources.fetch(url)
        # The refused one, the right one, and one without a digest.
        assert sources.fetched_bytes == 3 * len(content)
    assert (folder / "a/config.pbtxt").read_bytes() == b"text"


def idle_folders(root: Path) -> set[str]:
    """The folders that would be removed to make room, all of them unused for long."""
    for folder in (root / "folders").iterdir():
        os.utime(folder, (0, 0))
    return {folder.name for folder in ModelCache(root, print)._idle_folders()}


def test_a_folder_is_kept_while_somebody_uses_it_also_by_links(tmp_path: Path) -> None:
    one = archive(tmp_path / "one.tar.gz", CONFIG)
    two = archive(tmp_path / "two.tar.gz", ("b/1/model.onnx", REGTYPE, "text"))
    root = tmp_path / "cache"
    joined = ModelCache(root, print).fetch(f"{one},{two}")
    every = {folder.name for folder in (root / "folders").iterdir()}
    target = (joined / "b").resolve()
    holds = CacheHolds(root)
    for used, idle in (
        ((joined / "a", joined / "a", tmp_path), {target.parent.name}),
        ((joined / "a", target), set()),
        ((target,), every - {target.parent.name}),
        ((root / "folders/none/a",), every),
    ):
        holds.keep(used)
        assert idle_folders(root) == idle


def test_the_least_recently_used_repository_that_no_box_uses_makes_room(
    s3_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``one`` is older than ``two``, but a box holds it."""
    folders: dict[str, Path] = {}

    def usage(root: Path) -> SimpleNamespace:
        """A disk of 30 bytes."""
        return SimpleNamespace(free=30 - sum(file.stat().st_size for file in (root / "objects").iterdir()))

    def fetch(name: str) -> int:
        client(s3_url).put_object(Bucket="inputs", Key=f"{name}/model/weights", Body=f"{name:8}".encode())
        sources = ModelCache(tmp_path, print)
        folders[name] = sources.fetch(f"s3://inputs/{name}/")
        return sources.removed_bytes

    monkeypatch.setattr(shutil, "disk_usage", usage)
    for age, name in ((300, "one"), (200, "two"), (100, "three")):
        assert fetch(name) == 0
        os.utime(folders[name], (0, time.time() - age))
    holds = CacheHolds(tmp_path)
    holds.keep((folders["one"], *folders["one"].iterdir()))
    assert fetch("four") == 8
    holds.keep(())
    assert [name for name, folder in folders.items() if folder.is_dir()] == ["one", "three", "four"]


def test_an_address_of_an_extension_that_is_not_installed_names_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_points, "load", lambda _: ())
    with pytest.raises(StartError, match="extensions"):
        ModelCache(tmp_path, print).fetch("hf://owner/name")
