"""An archive: its models, the entry that requests call, what is refused, and its files under the names that Triton uses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.models.archive_layout import Archive, resolve_folder
from sm.models.staging import Staging, is_complete
from sm.repository.machine import Machine
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model

MODEL = multiplying_model()


@pytest.fixture
def platform(tmp_path: Path) -> ArchiveFolder:
    return ArchiveFolder(tmp_path / "models")


def read_archive(platform: ArchiveFolder, url: str) -> Archive:
    return Archive.read(resolve_folder(url, platform.home), Path(url))


def test_an_archive_may_be_a_single_model_folder_and_needs_no_configuration(platform: ArchiveFolder) -> None:
    url = platform.write_flat("hash")
    for _ in range(2):
        archive = read_archive(platform, url)
        assert (list(archive.models), archive.entry) == (["model"], "model")
        (Path(url) / "config.pbtxt").unlink(missing_ok=True)


@pytest.mark.parametrize(
    ("models", "entry", "order", "roots"),
    [
        ({"only": MODEL}, "only", "only", "only"),
        # An ensemble after its steps.
        ({"all": chain_config("inner", "c"), "b": MODEL, "c": MODEL, "inner": chain_config("b")}, "all", "b c inner all", "all"),
        # A model beside an ensemble on its own.
        ({"all": chain_config("a"), "a": MODEL, "python": MODEL}, "all", "a python all", "python all"),
    ],
)  # fmt: skip
def test_the_entry_is_the_ensemble_or_the_only_model(
    platform: ArchiveFolder, models: dict[str, object], entry: str, order: str, roots: str
) -> None:
    archive = read_archive(platform, platform.write_nested("hash", models))
    assert (archive.entry, [*archive.models], archive.roots) == (entry, order.split(), roots.split())


@pytest.mark.parametrize(
    "models", [{"a": MODEL, "b": MODEL}, {"a": MODEL, "one": chain_config("a"), "two": chain_config("a")}]
)
def test_several_possible_entries_need_a_client(platform: ArchiveFolder, models: dict[str, object]) -> None:
    with pytest.raises(BadInput):
        read_archive(platform, platform.write_nested("hash", models))
    archive = read_archive(platform, platform.write_nested("hash", models, client="class Mine(Client): ..."))
    assert archive.entry == ""
    assert archive.plugin is not None


def test_a_client_may_lie_in_a_folder_but_two_clients_are_refused(platform: ArchiveFolder) -> None:
    url = platform.write_flat("hash")
    for name in ("one", "two"):
        file = Path(url) / "code" / name / "client.py"
        file.parent.mkdir(parents=True)
        file.write_text("x = 1\n")
        if name == "one":
            plugin = read_archive(platform, url).plugin
            assert plugin is not None
            assert plugin.file == file
    with pytest.raises(BadInput):
        read_archive(platform, url)


@pytest.mark.parametrize(
    ("models", "script"), [({}, "def model_fn(model_dir): ...\n"), ({"a": MODEL}, "-" * 500_000 + "1")]
)
def test_a_toolkit_script_is_a_client_that_needs_no_model(
    platform: ArchiveFolder, models: dict[str, object], script: str
) -> None:
    archive = read_archive(platform, platform.write_nested("hash", models, inference=script))
    assert (list(archive.models), archive.roots) == (list(models), list(models))
    assert archive.plugin is not None
    assert archive.plugin.module == "inference"


#: A file of an archive, its text (``None``: it is missing) after the lines that it had, and what the error names.
REFUSED: dict[str, tuple[str, str | None, str]] = {
    "syntax error": ("code/client.py", "x = 1\ny = x +\n", "client.py, line 2"),
    "long client": ("code/client.py", "x = 1\n" * 200_000, "code/client.py"),
    "long script": ("code/inference.py", "x = 1\n" * 200_000, "code/inference.py"),
    "deep client": ("code/client.py", "-" * 500_000 + "1", "code"),
    "no configuration": ("config.pbtxt", "no { configuration", "model/config.pbtxt"),
    "large configuration": ("config.pbtxt", "x" * (2**20 + 1), "model/config.pbtxt"),
    "unclosed string": ("config.pbtxt", "name: '\xff", "model/config.pbtxt"),
    # Triton's load of such a model never ends.
    "no model.py": ("1/model.py", None, "model/1"),
    **{
        f"name {name}": ("config.pbtxt", f'name: "{name}"\n', "model/config.pbtxt")
        for name in ("..", "../../up", "a/b", "a\\nb")
    },
    # Triton ends at such a number.
    **{
        f"version {name}": (f"{name}/model.py", "", f"'{name}'")
        for name in (str(2**63), "20261123160454123456", "-99999999999999999999", "99999999999999999999x")
    },
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_archive_that_cannot_be_served_is_refused_by_its_file(platform: ArchiveFolder, name: str) -> None:
    url = platform.write_flat("hash")
    path, text, named = REFUSED[name]
    file = Path(url) / path
    if text is None:
        file.unlink()
    else:
        file.parent.mkdir(exist_ok=True)
        file.write_text((file.read_text() if file.exists() else "") + text)
    with pytest.raises(BadInput, match=named):
        read_archive(platform, url)


@pytest.mark.parametrize(
    "url", ["", "hash/model", "/etc", "{home}", "{home}/../up", "{home}x/hash", "{home}/none", "{home}/a\0b"]
)
def test_only_a_folder_below_the_archive_folder_is_accepted(platform: ArchiveFolder, url: str) -> None:
    with pytest.raises(BadInput):
        read_archive(platform, url.format(home=platform.home))


def test_only_a_link_out_of_the_archive_folder_is_refused(platform: ArchiveFolder, tmp_path: Path) -> None:
    platform.write_flat("hash")
    (platform.home / "link_out").symlink_to(tmp_path)
    with pytest.raises(BadInput):
        read_archive(platform, str(platform.home / "link_out"))
    link = tmp_path / "link"
    link.symlink_to(platform.home)
    assert resolve_folder(str(link / "hash" / "model"), link) == platform.home / "hash" / "model"


def test_two_models_of_the_same_name_are_refused(platform: ArchiveFolder) -> None:
    url = Path(platform.write_nested("hash", {"a": MODEL, "b": MODEL, "all": chain_config("a", "b")}))
    (url / "a" / "config.pbtxt").write_text('name: "b"\n' + (url / "a" / "config.pbtxt").read_text())
    with pytest.raises(BadInput, match="'b'"):
        read_archive(platform, str(url))


@pytest.mark.parametrize("name", [str(2**63 - 1), "0" * 30, "other", "٣"])
def test_a_folder_that_triton_accepts_or_ignores_is_not_refused(platform: ArchiveFolder, name: str) -> None:
    url = platform.write_flat("hash")
    shutil.copytree(Path(url) / "1", Path(url) / name)
    assert read_archive(platform, url).models["model"].versions[0] == 1


@pytest.mark.parametrize(
    ("lines", "versions"),
    [("instance_group { count: 17 } instance_group { count: 16 }", 1), ("instance_group { count: 7 }", 5)],
)
def test_the_instances_of_all_versions_are_limited(
    platform: ArchiveFolder, lines: str, versions: int
) -> None:
    url = Path(platform.write_flat("hash"))
    for number in range(2, versions + 1):
        shutil.copytree(url / "1", url / str(number))
    config = (url / "config.pbtxt").read_text()
    (url / "config.pbtxt").write_text(f"{config}version_policy {{ all {{}} }}\n{lines}")
    source = resolve_folder(str(url), platform.home)
    with pytest.raises(BadInput):
        Archive.read(source, url, Machine(max_instances=32))
    assert Archive.read(source, url, Machine(max_instances=35)).entry == "model"


@pytest.fixture
def staging(tmp_path: Path) -> Staging:
    (tmp_path / "repository").mkdir()
    return Staging(tmp_path / "repository", tmp_path / "views")


def test_a_configuration_with_its_name_is_copied_unchanged(
    staging: Staging, platform: ArchiveFolder, tmp_path: Path
) -> None:
    file = Path(platform.write_flat("flat")) / "config.pbtxt"
    file.write_text(f'name: "hash" # a comment\n{file.read_text()}')
    staging.add(Archive.read(file.parent, file.parent), {"model": "hash"})
    assert (tmp_path / "repository" / "hash" / "config.pbtxt").read_text() == file.read_text()


def test_a_client_finds_its_models_by_either_name(staging: Staging, platform: ArchiveFolder) -> None:
    flat = Path(platform.write_flat("flat"))
    (flat / "config.pbtxt").write_text('name: "resnet"\n' + (flat / "config.pbtxt").read_text())
    view = staging.create_view(Archive.read(flat, flat), "id")
    assert sorted(path.name for path in view.iterdir()) == ["model", "resnet"]
    assert (view / "resnet" / "1" / "model.py").is_file()


def test_a_model_without_its_files_is_not_complete(
    staging: Staging, platform: ArchiveFolder, tmp_path: Path
) -> None:
    archive = read_archive(platform, platform.write_nested("hash", {"a": MODEL, "all": chain_config("a")}))
    staging.add(archive, {"a": "a", "all": "hash"})
    folder = tmp_path / "repository" / "a"
    staging.touch("a")
    assert is_complete(folder)
    (archive.models["a"].folder / "1" / "model.py").unlink()
    assert not is_complete(folder)
    with pytest.raises(BadInput):
        staging.touch("a")
