"""``sm package``: what an archive holds, what is refused, and that the same input gives the same archive."""

from __future__ import annotations

import gzip
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pytest

from tests.integration.package.repositories import (
    archive_names,
    package_successfully,
    read_config,
    run_package,
    unpack,
    write_chain,
    write_client,
    write_repository,
)
from tests.support.sm_command import run_sm
from trireme_tools.package.archive_writer import BLOCK_BYTES, Gzip

FIRST = ["first", "first/1", "first/1/model.py", "first/config.pbtxt"]


def assert_refused(folder: Path, *options: object, named: tuple[str, ...] = ()) -> str:
    """Package ``folder/repository``, which must be refused by its names and leave no archive; return the error."""
    completed = run_package("repository", *options, cwd=folder)
    assert completed.returncode == 1
    assert [name for name in named if name not in completed.stderr] == []
    assert not (folder / "model.tar.gz").exists()
    return completed.stderr


def test_models_and_clients_are_at_the_top_and_links_are_files(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first", "second")
    write_client(folder / "code" / "client.py", "first")
    (folder / "first" / "1" / "weights.bin").write_bytes(b"weights")
    (folder / "second" / "1" / "weights.bin").symlink_to("../../first/1/weights.bin")
    (folder / "second" / "2").symlink_to("1")
    (folder / "second" / "run").write_text("")
    (folder / "second" / "run").chmod(0o700)
    package_successfully("repository", cwd=tmp_path)
    one, two = (
        (f"second/{number}", f"second/{number}/model.py", f"second/{number}/weights.bin") for number in (1, 2)
    )
    with tarfile.open(tmp_path / "model.tar.gz") as archive:
        entries = {entry.name: entry for entry in archive}
    assert list(entries) == [
        *("code", "code/client.py"),
        *("first", "first/1", "first/1/model.py", "first/1/weights.bin", "first/config.pbtxt"),
        *("second", *one, *two, "second/config.pbtxt", "second/run"),
    ]
    assert not [name for name, entry in entries.items() if entry.issym()]
    modes = [entries[name].mode for name in ("second/run", "second/config.pbtxt", "second/1")]
    assert modes == [0o755, 0o644, 0o755]
    out = unpack(tmp_path / "model.tar.gz", tmp_path / "out")
    assert (out / "second" / "2" / "weights.bin").read_bytes() == b"weights"


def packed_code(archive: Path) -> set[str]:
    return {name for name in archive_names(archive) if name.startswith("code")}


@pytest.mark.exhaustive
def test_the_clients_of_a_folder_are_packed_beside_the_models(tmp_path: Path) -> None:
    write_repository(tmp_path / "model", "first", "second")
    for name in ("first", "second"):
        write_client(tmp_path / "clients" / name / "client.py", name)
    both = {"code", "code/first", "code/first/client.py", "code/second", "code/second/client.py"}
    package_successfully("model", "--clients", "clients", cwd=tmp_path)
    assert packed_code(tmp_path / "model.tar.gz") == both
    package_successfully("model", "--clients", "clients", "--mme", cwd=tmp_path)
    first = {name for name in both if "second" not in name}
    assert packed_code(tmp_path / "archives" / "first.tar.gz") == first
    # The repository may have one of them already, but not another of its name.
    shutil.copytree(tmp_path / "clients" / "first", tmp_path / "model" / "code" / "first")
    package_successfully("model", "--clients", "clients", cwd=tmp_path)
    assert packed_code(tmp_path / "model.tar.gz") == both
    write_client(tmp_path / "clients" / "first" / "client.py", "second")
    for options in ((), ("--no-client-check",)):
        assert run_package("model", "--clients", "clients", *options, cwd=tmp_path).returncode == 1


@pytest.mark.exhaustive
def test_a_repository_whose_clients_cannot_load_is_not_packed(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first")
    write_client(folder / "code" / "missing" / "client.py", "second")
    write_client(folder / "code" / "resnet" / "client.py", "first")
    for name, source in {"broken": "import no_such_package", "ends": "import os\nos._exit(0)"}.items():
        (folder / "code" / name).mkdir()
        (folder / "code" / name / "client.py").write_text(source)
    assert_refused(tmp_path, named=("code/broken/client.py", "code/ends/client.py"))
    shutil.rmtree(folder / "code" / "ends")
    error = assert_refused(tmp_path, "--exclude", "code/broken")
    named = [name for name in ("broken", "missing", "resnet") if f"code/{name}/client.py" in error]
    assert named == ["missing", "resnet"]
    inspected = run_sm("inspect", folder, "--json")
    assert (inspected.returncode, len(json.loads(inspected.stdout)["problems"])) == (1, 3)
    package_successfully("repository", "--no-client-check", cwd=tmp_path)
    assert not list(folder.rglob("__pycache__"))


def test_a_package_that_a_box_installs_may_be_missing_here(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first")
    (folder / "code").mkdir()
    (folder / "code" / "inference.py").write_text("import no_such_package\n\n\ndef model_fn(folder): ...\n")
    assert_refused(tmp_path, named=("'no_such_package'",))
    (folder / "code" / "requirements.txt").write_text("no-such-package==1\n")
    completed = run_package("repository", cwd=tmp_path)
    assert (completed.returncode, "'no_such_package'" in completed.stderr) == (0, True)


def test_the_same_input_is_the_same_archive_whenever_and_wherever_it_is_packed(tmp_path: Path) -> None:
    first = write_repository(tmp_path / "here" / "repository", "b", "a")
    second = write_repository(tmp_path / "there" / "repository", "a", "b")
    for file in second.rglob("*"):
        os.utime(file, (1, 1))
    outputs = [package_successfully(folder, cwd=folder.parent) for folder in (first, second)]
    archives = [(folder.parent / "model.tar.gz").read_bytes() for folder in (first, second)]
    assert (outputs[0], archives[0]) == (outputs[1], archives[1])


def test_a_repository_that_would_not_start_is_not_packed(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "good", "bad")
    shutil.rmtree(folder / "bad" / "1")
    assert_refused(tmp_path, named=("repository/bad ",))


def test_links_that_cannot_be_packed_are_all_named(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first")
    (tmp_path / "secret").write_text("mine")
    links = {"lost": "no-such-file", "round": "round", "outside": "../../../secret", "up": ".."}
    for name, target in links.items():
        link = folder / "first" / "1" / name
        link.symlink_to(target)
        assert_refused(tmp_path, named=(f"1/{name} ",))
        link.unlink()


def test_caches_and_an_earlier_archive_are_left_out(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first")
    for cache in (".git", "first/1/__pycache__", "first/.ipynb_checkpoints"):
        (folder / cache).mkdir()
        (folder / cache / "some").write_text("")
    for _ in range(2):
        package_successfully(".", cwd=folder)
        assert archive_names(folder / "model.tar.gz") == FIRST


def test_excluded_caches_are_left_out_and_listed_with_their_size(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first")
    caches = ("first/1/hf_cache", "first/hf_cache", "hf_cache")
    for cache in caches:
        (folder / cache / "hub").mkdir(parents=True)
        (folder / cache / "hub" / "blob").write_bytes(bytes(200_000))
        (folder / cache / "link").symlink_to("/etc/hostname")  # leads out of the repository
    (folder / "first" / "1" / "notes.ckpt").write_text("")
    assert_refused(tmp_path)
    options = ("--exclude", "hf_cache", "--exclude", "*.ckpt", "--exclude", "first/1/model.p?c")
    output = package_successfully("repository", *options, cwd=tmp_path)
    assert archive_names(tmp_path / "model.tar.gz") == FIRST
    assert {f"left out {cache}  0.2 MB" for cache in caches} <= set(output.splitlines())


@pytest.mark.parametrize(
    ("pattern", "named"),
    [
        ("*.py", "repository/post/1/model.py"),
        ("1", "repository/post/1"),
        ("config.pbtxt", "repository/"),
        ("pre", "whole "),
        ("/", "--exclude"),
    ],
)
def test_excluding_a_file_that_a_model_needs_is_refused(tmp_path: Path, pattern: str, named: str) -> None:
    write_chain(tmp_path / "repository", "whole", "pre", "post")
    assert_refused(tmp_path, "--exclude", pattern, named=(named,))


def test_on_a_full_disk_the_old_archive_stays_and_nothing_of_the_new_one(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    folder = write_repository(tmp_path / "repository", "first")
    (folder / "first" / "1" / "weights.bin").write_bytes(os.urandom(5_000_000))
    (tmp_path / "model.tar.gz").write_text("old")
    completed = run_package("repository", cwd=tmp_path, command_prefix="prlimit --fsize=1000000")
    assert (completed.returncode, "Traceback" in completed.stderr) == (1, False)
    assert (tmp_path / "model.tar.gz").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"repository", "model.tar.gz"}


def test_in_multi_model_mode_each_model_has_its_archive_and_its_client(tmp_path: Path) -> None:
    folder = write_repository(tmp_path / "repository", "first", "second")
    for name in ("first", "second"):
        write_client(folder / "code" / name / "client.py", name)
    (folder / "code" / "common.py").write_text("")
    package_successfully("repository", "--mme", cwd=tmp_path)
    archives = {path.name for path in (tmp_path / "archives").iterdir()}
    assert archives == {"first.tar.gz", "second.tar.gz"}
    code = ["code", "code/common.py", "code/first", "code/first/client.py"]
    assert archive_names(tmp_path / "archives" / "first.tar.gz") == [*code, *FIRST]


def test_copies_have_their_own_names_in_every_configuration(tmp_path: Path) -> None:
    folder = write_chain(tmp_path / "repository", "whole", "pre", "post")
    (folder / "pre" / "config.pbtxt").write_text(
        f'name:"pre"  # a comment with name: "pre"\n{(folder / "pre" / "config.pbtxt").read_text()}'
    )
    package_successfully("repository", "--mme", "--copies", 2, "-o", "out", cwd=tmp_path)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["whole-1.tar.gz", "whole-2.tar.gz"]
    second = unpack(tmp_path / "out" / "whole-2.tar.gz", tmp_path / "second")
    assert {path.name for path in second.iterdir()} == {"whole-2", "pre-2", "post-2"}
    names = ("whole-2", "pre-2")
    assert tuple(read_config(second / name / "config.pbtxt").name for name in names) == names
    steps = read_config(second / "whole-2" / "config.pbtxt").ensemble_scheduling.step
    assert [step.model_name for step in steps] == ["pre-2", "post-2"]


def test_copies_have_the_given_first_number_and_name(tmp_path: Path) -> None:
    write_repository(tmp_path / "repository", "model")
    options = ("--mme", "--copies", 3, "--copies-from", 0, "--copy-name", "{model}_{number}")
    package_successfully("repository", *options, cwd=tmp_path)
    archives = sorted(path.name for path in (tmp_path / "archives").iterdir())
    assert archives == ["model_0.tar.gz", "model_1.tar.gz", "model_2.tar.gz"]
    last = unpack(tmp_path / "archives" / "model_2.tar.gz", tmp_path / "last")
    assert read_config(last / "model_2" / "config.pbtxt").name == "model_2"


NAMES_OF_SEVERAL_COPIES = ("{model}", "{number}", "{model}/{number}", "{model}-{number}-{x}", "{")


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--copies", "2"), "--copies"),
        (("--mme", "--copies", "-1"), "--copies"),
        *((("--mme", "--copies", "2", "--copy-name", name), name) for name in NAMES_OF_SEVERAL_COPIES),
    ],
)
def test_copies_without_mme_a_valid_number_or_names_of_their_own_are_refused(
    tmp_path: Path, options: tuple[str, ...], named: str
) -> None:
    write_repository(tmp_path / "repository", "first")
    assert_refused(tmp_path, *options, named=(named,))


@pytest.mark.parametrize("path", ["../other/env", "env"])
def test_an_environment_is_packed_once_with_its_model(tmp_path: Path, path: str) -> None:
    """Also if it is in another model's folder."""
    folder = write_repository(tmp_path / "repository", "first", "other")
    (folder / "first" / path / "bin").mkdir(parents=True)
    (folder / "first" / path / "bin" / "activate").write_text("")
    with (folder / "first" / "config.pbtxt").open("a") as stream:
        value = f'{{string_value: "$$TRITON_MODEL_DIRECTORY/{path}"}}'
        stream.write(f'parameters {{key: "EXECUTION_ENV_PATH", value: {value}}}\n')
    (tmp_path / "here").mkdir()
    package_successfully("../repository", "--mme", "-o", "../archives", cwd=tmp_path / "here")
    assert archive_names(tmp_path / "archives" / "first.tar.gz").count("first/env/bin") == 1
    first = unpack(tmp_path / "archives" / "first.tar.gz", tmp_path / "first")
    assert (first / "first" / "env" / "bin" / "activate").is_file()
    parameter = read_config(first / "first" / "config.pbtxt").parameters["EXECUTION_ENV_PATH"]
    assert parameter.string_value == "$$TRITON_MODEL_DIRECTORY/env"


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 5 * BLOCK_BYTES + 17])
def test_gzip_reads_back_what_any_number_of_threads_compressed(size: int) -> None:
    data = os.urandom(size // 2) + bytes(size - size // 2)
    packed = []
    for threads in (1, 3):
        target = io.BytesIO()
        writer = Gzip(target, threads, 3)
        for start in range(0, size, 300_000):
            writer.write(data[start : start + 300_000])
        writer.close()
        packed.append(target.getvalue())
    assert gzip.decompress(packed[0]) == data
    assert packed[1] == packed[0]
