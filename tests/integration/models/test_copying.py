"""The copy of an archive holds only regular files of the archive."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.models import archive_copy
from sm.models.archive_copy import MAX_COPIED_FILE_BYTES, copy_archive
from sm.settings import HERE

pytestmark = pytest.mark.core


SMALL = {"config.pbtxt": "small", "1/model.py": "x = 1"}


def write_files(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    write_files(tmp_path / "archive", SMALL)
    return tmp_path / "archive"


@pytest.fixture
def weights(archive: Path) -> Path:
    """A file that is too large to copy."""
    (archive / "1" / "weights").write_bytes(bytes(MAX_COPIED_FILE_BYTES + 1))
    return archive / "1" / "weights"


def copy(archive: Path, name: str = "copy", **limits: int) -> Path:
    copy_archive(archive, archive.parent / name, **limits)
    return archive.parent / name


def test_the_copy_has_the_same_files_and_is_independent_of_the_archive(archive: Path) -> None:
    (archive / "1" / "run.sh").write_text("true")
    (archive / "1" / "run.sh").chmod(0o755)
    target = copy(archive)
    (archive / "config.pbtxt").write_text("other")
    assert {name: (target / name).read_text() for name in SMALL} == SMALL
    assert os.access(target / "1" / "run.sh", os.X_OK)
    assert sorted(path.name for path in target.rglob("*")) == ["1", "config.pbtxt", "model.py", "run.sh"]


def test_a_large_file_is_hard_linked_and_survives_the_archives_removal(archive: Path, weights: Path) -> None:
    target = copy(archive)
    assert (target / "1" / "weights").samefile(weights)
    weights.unlink()
    assert (target / "1" / "weights").stat().st_size == MAX_COPIED_FILE_BYTES + 1


def test_on_another_file_system_a_large_file_is_a_symbolic_link(archive: Path, weights: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        if weights.stat().st_dev == Path(folder).stat().st_dev:
            pytest.skip("this machine has one file system only")
        target = Path(folder) / "copy"
        copy_archive(archive, target)
        assert (target / "1" / "weights").readlink() == weights
        assert not (target / "1" / "model.py").is_symlink()


def test_past_the_copy_limit_small_files_are_linked_except_those_the_box_reads(archive: Path) -> None:
    def linked(target: Path) -> list[str]:
        return [name for name in files if (target / name).samefile(archive / name)]

    write_files(archive, {"1/labels.txt": "cat"})
    files = [*SMALL, "1/labels.txt"]
    assert linked(copy(archive, max_copied=3)) == []
    write_files(archive, {"2/labels.txt": "cats"})
    assert (copy(archive, "second", max_copied=3) / "2/labels.txt").samefile(archive / "2/labels.txt")


def make_socket(path: Path) -> None:
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def make_link_to_a_pipe(path: Path) -> None:
    os.mkfifo(path.parent / "z")
    path.symlink_to("z")


BAD_ENTRIES: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": make_socket,
    "link to a pipe": make_link_to_a_pipe,
    "link to the archive": lambda path: path.symlink_to(path.parents[1]),
    **{
        f"link to {target}": partial(lambda target, path: path.symlink_to(target), target)
        for target in (
            *("/dev/zero", "../../secret", "up/../../secret", "nothing", "model.py/x"),
            *("odd", "."),  # itself, and its folder
        )
    },
}


@pytest.mark.parametrize("kind", BAD_ENTRIES)
def test_an_entry_that_is_not_a_file_of_the_archive_is_named_and_not_read(
    archive: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(archive)
    (archive.parent / "secret").write_text("secret")
    (archive / "1" / "up").symlink_to("../1x")
    (archive / "1x").mkdir()
    BAD_ENTRIES[kind](archive / "1" / "odd")
    with pytest.raises(BadInput, match="1/odd") as excinfo:
        copy(archive)
    assert "secret" not in str(excinfo.value).replace("../secret", "")


def test_links_within_the_archive_are_copied_as_their_targets(archive: Path) -> None:
    write_files(archive, {"blobs/a": "blob"})
    for name, target in (("1/weights", "../blobs/./a"), ("1/again", "weights"), ("2", "1")):
        (archive / name).symlink_to(target)
    copied = copy(archive)
    for name in ("1/weights", "1/again", "2/weights", "2/model.py"):
        assert not (copied / name).is_symlink()
        assert (copied / name).read_text() == (archive / name).read_text()


def link_folders_into_each_other(archive: Path) -> None:
    for folder, linked in (("1", "2"), ("2", "1")):
        (archive / folder).mkdir(exist_ok=True)
        (archive / folder / "next").symlink_to(f"../{linked}")


REFUSED: dict[str, Callable[[Path], object]] = {
    "folders that link into each other": link_folders_into_each_other,
    "too many entries": lambda archive: [(archive / f"file{n}").write_text("") for n in range(20)],
    "too deep": lambda archive: archive.joinpath(*["d"] * (archive_copy.MAX_DEPTH + 1)).mkdir(parents=True),
    "too long a path": lambda archive: archive.joinpath(*["d" * 250] * 13).mkdir(parents=True),
    "a name that is not UTF-8": lambda archive: (archive / os.fsdecode(b"\xff")).write_text(""),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_an_archive_that_cannot_be_copied_is_refused(archive: Path, kind: str) -> None:
    REFUSED[kind](archive)
    name = "e" * 250 if kind == "too long a path" else "copy"
    with pytest.raises(BadInput) as excinfo:
        copy_archive(archive, archive.parent / name, max_entries=20)
    str(excinfo.value).encode()


FILL_THE_DISK = """
import sys
import tempfile
from pathlib import Path
from sm.errors import OutOfMemory
from sm.models.load_records import LoadRecords
from sm.models.staging import Staging
from tests.support.model_archives import ArchiveFolder
from tests.support.noted_control import RecordingControl
from sm.models.model_loader import ModelLoader
home, run = Path(sys.argv[1]), Path(sys.argv[2])
platform = ArchiveFolder(home)
url = platform.write_flat("large")
for number in range(20):
    (Path(url) / f"labels{number}.txt").write_bytes(bytes(50_000))
(run / "models").mkdir()
loader = ModelLoader(LoadRecords(run / "models.json"), Staging(run / "models", run / "archives"), RecordingControl(), home=home)
try:
    loader.load("large", url)
except OutOfMemory:
    print("no room")
assert not loader.records.read().records
assert not list((run / "archives").iterdir()) and not list((run / "models").iterdir())
loader.load("small", platform.write_flat("small"))
"""


def test_a_copy_on_a_full_disk_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    """On a real file system that is full. Its space is freed: a small archive loads afterwards."""
    home, run = tmp_path / "archives", tmp_path / "run"
    home.mkdir()
    run.mkdir()
    script = f'mount -t tmpfs -o size=512k none {run} || exit 77\nexec "$0" -c "$1" "$2" "$3"'
    completed = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script, sys.executable, FILL_THE_DISK, str(home), str(run)],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if completed.returncode == 77 or "unshare failed" in completed.stderr:
        pytest.skip("this machine does not allow mounting a small file system")
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout == "no room\n"
