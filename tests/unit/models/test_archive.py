"""An archive: its models, the entry that requests call, what is refused, and its files under the names that Triton uses."""

from __future__ import annotations

import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import pytest

from sm.errors import BadInput
from sm.models.archive_layout import Archive, resolve_folder
from sm.models.load_records import is_complete
from sm.models.staging import Staging
from sm.repository import problems
from sm.repository.machine import Machine
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model

MODEL = multiplying_model()


@pytest.fixture
def platform(tmp_path: Path) -> ArchiveFolder:
    return ArchiveFolder(tmp_path / "models")


@pytest.fixture
def flat(platform: ArchiveFolder) -> Path:
    """An archive that is a single model's folder."""
    return Path(platform.write_flat("hash"))


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    (tmp_path / "repository").mkdir()
    return Staging(tmp_path / "repository", tmp_path / "views")


def prepend(text: str, file: Path) -> None:
    file.write_text(text + file.read_text())


def read(platform: ArchiveFolder, url: str | Path) -> Archive:
    """Read a copy of an archive, as the box does. What is wrong is named as in the archive alone."""
    source = resolve_folder(str(url), platform.home)
    copy = platform.home.parent / "copies" / secrets.token_hex(4) / source.name
    copy.parent.mkdir(parents=True)
    shutil.copytree(source, copy, symlinks=True)
    try:
        return Archive.read(copy, source)
    except BadInput as error:
        assert "copies" not in error.sentence
        raise


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ({"only": MODEL}, "entry: only, order: only, roots: only"),
        # An ensemble after its steps.
        ({"all": chain_config("inner", "c"), "b": MODEL, "c": MODEL, "inner": chain_config("b")}, "entry: all, order: b c inner all, roots: all"),
        # A model beside an ensemble on its own.
        ({"all": chain_config("a"), "a": MODEL, "python": MODEL}, "entry: all, order: a python all, roots: python all"),
    ],
)  # fmt: skip
def test_the_entry_is_the_ensemble_or_the_only_model(
    platform: ArchiveFolder, models: Any, expected: str
) -> None:
    archive = read(platform, platform.write_nested("hash", models))
    order, roots = " ".join(archive.models), " ".join(archive.roots)
    assert f"entry: {archive.entry}, order: {order}, roots: {roots}" == expected


@pytest.mark.parametrize(
    "models", [{"a": MODEL, "b": MODEL}, {"a": MODEL, "one": chain_config("a"), "two": chain_config("a")}]
)
def test_several_possible_entries_need_a_client(platform: ArchiveFolder, models: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        read(platform, platform.write_nested("hash", models))
    archive = read(platform, platform.write_nested("hash", models, client="class Mine(Client): ..."))
    assert archive.entry == ""
    assert archive.plugin is not None


def test_a_client_may_lie_in_a_folder_but_two_are_refused(platform: ArchiveFolder, flat: Path) -> None:
    files = [flat / "code" / name / "client.py" for name in ("one", "two")]
    for file in files:
        file.parent.mkdir(parents=True)
    files[0].write_text("x = 1\n")
    plugin = read(platform, flat).plugin
    assert plugin and plugin.file.parts[-3:] == ("code", "one", "client.py")
    files[1].write_text("x = 1\n")
    with pytest.raises(BadInput):
        read(platform, flat)


@pytest.mark.parametrize(
    ("models", "script"), [({}, "def model_fn(model_dir): ...\n"), ({"a": MODEL}, "-" * 10_000 + "1")]
)
def test_a_toolkit_script_is_a_client_that_needs_no_model(
    platform: ArchiveFolder, models: dict[str, object], script: str
) -> None:
    archive = read(platform, platform.write_nested("hash", models, inference=script))
    assert list(archive.models) == archive.roots == list(models)
    assert archive.plugin and archive.plugin.kind == "script"


#: A file of an archive, its text (``None``: it is missing) after the lines that it had, and what the error names.
REFUSED: dict[str, tuple[str, str | None, str]] = {
    "syntax error": ("code/client.py", "x = 1\ny = x +\n", "client.py, line 2"),
    "long client": ("code/client.py", "x = 1\n" * 22_000, "code/client.py"),
    "long script": ("code/inference.py", "x = 1\n" * 22_000, "code/inference.py"),
    "deep client": ("code/client.py", "-" * 10_000 + "1", "code"),
    "no configuration": ("config.pbtxt", "no { configuration", "model/config.pbtxt"),
    "large configuration": ("config.pbtxt", "x" * (2**20 + 1), "model/config.pbtxt"),
    "unclosed string": ("config.pbtxt", "name: '\xff", "model/config.pbtxt"),
    "no model.py": ("1/model.py", None, "model/1"),
}
REFUSED |= {
    f"name {name}": ("config.pbtxt", f'name: "{name}"\n', "model/config.pbtxt")
    for name in ("..", "../../up", "a/b", "a\\nb")
}
#: Names of folders that are read as a number beyond the largest version, if that is 9.
BEYOND_9 = ("10", "-10", "10x", " 10", "+10")


@pytest.mark.parametrize("name", REFUSED)
def test_an_archive_that_cannot_be_served_is_refused_by_its_file(
    platform: ArchiveFolder, flat: Path, name: str
) -> None:
    path, text, named = REFUSED[name]
    file = flat / path
    if text is None:
        file.unlink()
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + text)
    with pytest.raises(BadInput, match=named):
        read(platform, flat)


@pytest.mark.parametrize("name", BEYOND_9)
def test_a_version_beyond_the_largest_is_refused_by_its_folder(
    platform: ArchiveFolder, flat: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(problems, "MAX_VERSION", 9)
    shutil.copytree(flat / "1", flat / name)
    with pytest.raises(BadInput, match=f"'{re.escape(name)}'"):
        read(platform, flat)


URLS = ["", "hash/model", "/etc", "{home}", "{home}/../up", "{home}x/hash", "{home}/none", "{home}/a\0b", "{home}/out"]  # fmt: skip


@pytest.mark.parametrize("url", URLS)
def test_only_a_folder_below_the_archive_folder_is_accepted(platform: ArchiveFolder, url: str) -> None:
    (platform.home / "out").symlink_to(platform.home.parent)
    with pytest.raises(BadInput):
        read(platform, url.format(home=platform.home))


def test_the_archive_folder_may_be_a_link(platform: ArchiveFolder, flat: Path) -> None:
    link = platform.home.with_name("link")
    link.symlink_to(platform.home)
    assert resolve_folder(str(link / "hash" / "model"), link) == flat


def test_two_models_of_the_same_name_are_refused(platform: ArchiveFolder) -> None:
    url = Path(platform.write_nested("hash", {"a": MODEL, "b": MODEL, "all": chain_config("a", "b")}))
    prepend('name: "b"\n', url / "a" / "config.pbtxt")
    with pytest.raises(BadInput, match="'b'"):
        read(platform, url)


@pytest.mark.parametrize("step", ["all", "other"])
def test_an_ensembles_steps_are_other_models_of_its_archive(platform: ArchiveFolder, step: str) -> None:
    """Models of another archive come and go."""
    platform.write_flat("other")
    with pytest.raises(BadInput, match=f"'{step}'"):
        read(platform, platform.write_nested("hash", {"all": chain_config(step)}))


@pytest.mark.parametrize("name", [str(2**63 - 1), "0" * 30, "other", "٣"])
def test_a_folder_that_triton_accepts_or_ignores_is_not_refused(
    platform: ArchiveFolder, flat: Path, name: str
) -> None:
    shutil.copytree(flat / "1", flat / name)
    assert read(platform, flat).models["model"].versions[0] == 1


@pytest.mark.parametrize(
    ("lines", "versions"),
    [("instance_group { count: 17 } instance_group { count: 16 }", 1), ("instance_group { count: 7 }", 5)],
)
def test_the_instances_of_all_versions_are_limited(flat: Path, lines: str, versions: int) -> None:
    for number in range(2, versions + 1):
        shutil.copytree(flat / "1", flat / str(number))
    prepend(f"version_policy {{ all {{}} }}\n{lines}\n", flat / "config.pbtxt")
    with pytest.raises(BadInput):
        Archive.read(flat, flat, Machine(max_instances=32))
    assert Archive.read(flat, flat, Machine(max_instances=35)).entry == "model"


def test_a_configuration_with_its_name_is_copied_unchanged(staging: Staging, flat: Path) -> None:
    prepend('name: "hash" # a comment\n', flat / "config.pbtxt")
    staging.add(Archive.read(flat, flat), {"model": "hash"})
    copy = flat.parents[2] / "repository" / "hash" / "config.pbtxt"
    assert copy.read_text() == (flat / "config.pbtxt").read_text()


def test_a_client_finds_its_models_by_either_name(staging: Staging, flat: Path) -> None:
    prepend('name: "resnet"\n', flat / "config.pbtxt")
    view = staging.create_view(Archive.read(flat, flat), "id")
    assert sorted(path.name for path in view.iterdir()) == ["model", "resnet"]
    assert (view / "resnet" / "1" / "model.py").is_file()


def test_a_model_without_its_files_is_not_complete(staging: Staging, platform: ArchiveFolder) -> None:
    archive = read(platform, platform.write_nested("hash", {"a": MODEL, "all": chain_config("a")}))
    staging.add(archive, {"a": "a", "all": "hash"})
    staging.touch("a")
    folder = platform.home.parent / "repository" / "a"
    assert is_complete(folder)
    (archive.models["a"].folder / "1" / "model.py").unlink()
    assert not is_complete(folder)
    with pytest.raises(BadInput):
        staging.touch("a")
