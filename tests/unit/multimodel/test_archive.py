"""An archive is read: which models are in it, which is called, and what makes it none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.errors import BadInput
from sm.multimodel.archive_layout import Archive, resolve_folder
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model


@pytest.fixture
def platform(tmp_path: Path) -> ArchiveFolder:
    return ArchiveFolder(tmp_path / "models")


def read(platform: ArchiveFolder, url: str) -> Archive:
    return Archive.read(resolve_folder(url, platform.home), Path(url))


def test_a_folder_that_is_a_model_is_registered_one_level_up(platform: ArchiveFolder) -> None:
    archive = read(platform, platform.flat("hash"))
    assert (list(archive.models), archive.entry) == (["model"], "model")


def test_a_folder_of_one_model_is_registered_itself(platform: ArchiveFolder) -> None:
    url = platform.nested("hash", {"only": multiplying_model()})
    archive = read(platform, url)
    assert archive.entry == "only"


def test_a_model_needs_no_configuration(platform: ArchiveFolder) -> None:
    url = platform.flat("hash")
    (Path(url) / "config.pbtxt").unlink()
    assert read(platform, url).entry == "model"


def test_the_ensemble_is_called_comes_last_and_brings_its_steps(platform: ArchiveFolder) -> None:
    models = {
        "all": chain_config("inner", "c"),
        "b": multiplying_model(),
        "c": multiplying_model(),
        "inner": chain_config("b"),
    }
    archive = read(platform, platform.nested("hash", models))
    assert archive.entry == "all"
    assert list(archive.models) == ["b", "c", "inner", "all"]
    assert archive.roots == ["all"]


def test_models_beside_an_ensemble_are_loaded_on_their_own(platform: ArchiveFolder) -> None:
    models = {"all": chain_config("a"), "a": multiplying_model(), "called_by_a": multiplying_model()}
    assert read(platform, platform.nested("hash", models)).roots == ["called_by_a", "all"]


@pytest.mark.parametrize(
    "models",
    [
        {"a": multiplying_model(), "b": multiplying_model()},
        {"a": multiplying_model(), "one": chain_config("a"), "two": chain_config("a")},
    ],
    ids=["no ensemble", "two ensembles"],
)
def test_several_that_could_be_called_need_a_client(
    platform: ArchiveFolder, models: dict[str, object]
) -> None:
    with pytest.raises(BadInput, match="could be the one to call"):
        read(platform, platform.nested("hash", models))
    archive = read(platform, platform.nested("hash", models, client="class Mine(Client): ..."))
    assert archive.entry == ""
    assert archive.plugin is not None


def test_a_client_may_lie_in_a_folder_but_two_are_one_too_many(platform: ArchiveFolder) -> None:
    url = platform.flat("hash")
    for name in ("one", "two"):
        file = Path(url) / "code" / name / "client.py"
        file.parent.mkdir(parents=True)
        file.write_text("x = 1\n")
        if name == "one":
            plugin = read(platform, url).plugin
            assert plugin is not None
            assert plugin.file == file
    with pytest.raises(BadInput, match="2 clients"):
        read(platform, url)


def test_a_toolkit_script_is_a_client(platform: ArchiveFolder) -> None:
    script = "def model_fn(model_dir): ...\ndef predict_fn(data, model): ...\n"
    plugin = read(platform, platform.flat("hash", inference=script)).plugin
    assert plugin is not None
    assert plugin.module == "inference"


def test_a_script_needs_no_model_of_tritons(platform: ArchiveFolder) -> None:
    archive = read(platform, platform.nested("hash", {}, inference="def model_fn(model_dir): ...\n"))
    assert (dict(archive.models), archive.entry, archive.roots) == ({}, "", [])
    assert archive.plugin is not None


def test_other_code_is_no_client(platform: ArchiveFolder) -> None:
    assert read(platform, platform.flat("hash", helpers="x = 1\n")).plugin is None


def test_a_slip_of_the_pen_is_told_with_its_line(platform: ArchiveFolder) -> None:
    with pytest.raises(BadInput, match="line 2"):
        read(platform, platform.flat("hash", client="x = 1\ny = x +\n"))


def test_a_configuration_that_is_none_is_named(platform: ArchiveFolder) -> None:
    url = platform.nested("hash", {"a": "no { configuration"})
    with pytest.raises(BadInput, match=r"a/config.pbtxt is no Triton configuration"):
        read(platform, url)


def test_a_folder_without_a_model_says_what_was_looked_for(platform: ArchiveFolder) -> None:
    url = platform.nested("hash", {})
    Path(url).mkdir()
    with pytest.raises(BadInput, match="there is no model in"):
        read(platform, url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "hash/model",
        "/etc",
        "/dev/shm",
        "{home}",
        "{home}/../up",
        "{home}x/hash",
        "{home}/none",
        "{home}/a\0b",
    ],
)
def test_only_a_folder_below_the_home_is_an_archive(platform: ArchiveFolder, url: str) -> None:
    with pytest.raises(BadInput):
        read(platform, url.format(home=platform.home))


def test_a_link_out_of_the_home_is_refused_and_one_to_the_home_is_not(
    platform: ArchiveFolder, tmp_path: Path
) -> None:
    platform.flat("hash")
    (platform.home / "way_out").symlink_to(tmp_path)
    with pytest.raises(BadInput, match="leads out"):
        read(platform, str(platform.home / "way_out"))
    link = tmp_path / "link"
    link.symlink_to(platform.home)
    assert resolve_folder(str(link / "hash" / "model"), link) == platform.home / "hash" / "model"


@pytest.mark.parametrize("text", ["", "x" * (2**20 + 1), "name: '\xff"])
def test_a_configuration_is_bounded_and_an_empty_one_is_none_for_nobody(
    platform: ArchiveFolder, text: str
) -> None:
    url = platform.flat("hash")
    (Path(url) / "config.pbtxt").write_text(text)
    if text:
        with pytest.raises(BadInput, match="no Triton configuration"):
            read(platform, url)
    else:
        assert read(platform, url).entry == "model"


@pytest.mark.parametrize("module", ["client", "inference"])
@pytest.mark.parametrize(
    ("text", "said"),
    [("x = 1\n" * 200_000, "a client is shorter"), ("-" * 500_000 + "1", "nested too deep|Client")],
)
def test_a_client_that_cannot_be_parsed_in_bounds_is_refused_or_left_to_its_load(
    platform: ArchiveFolder, module: str, text: str, said: str
) -> None:
    url = platform.flat("hash", None, **{module: text})
    if module == "inference" and "nested" in said:
        assert read(platform, url).plugin is not None
        return
    with pytest.raises(BadInput, match=said):
        read(platform, url)


def test_a_python_model_without_its_file_is_named(platform: ArchiveFolder) -> None:
    """Triton would wait for it for ever."""
    url = platform.flat("hash")
    (Path(url) / "1" / "model.py").unlink()
    with pytest.raises(BadInput, match=r"model/1 has no model.py"):
        read(platform, url)


@pytest.mark.parametrize("name", ["..", "../../up", "a/b", "a\\nb"])
def test_a_configuration_may_not_name_a_model_like_a_path(platform: ArchiveFolder, name: str) -> None:
    url = Path(platform.flat("hash"))
    (url / "config.pbtxt").write_text(f'name: "{name}"\n' + (url / "config.pbtxt").read_text())
    with pytest.raises(BadInput, match="names the model"):
        read(platform, str(url))


def test_two_models_may_not_be_called_alike(platform: ArchiveFolder) -> None:
    url = Path(
        platform.nested(
            "hash", {"a": multiplying_model(), "b": multiplying_model(), "all": chain_config("a", "b")}
        )
    )
    (url / "a" / "config.pbtxt").write_text('name: "b"\n' + (url / "a" / "config.pbtxt").read_text())
    with pytest.raises(BadInput, match="'a' and 'b' are both called 'b'"):
        read(platform, str(url))


def test_sentences_name_files_where_the_platform_put_them(platform: ArchiveFolder, tmp_path: Path) -> None:
    url = Path(platform.flat("hash"))
    (url / "config.pbtxt").write_text("no { configuration")
    copy = tmp_path / "copy"
    url.rename(copy)
    with pytest.raises(BadInput) as caught:
        Archive.read(copy, url)
    assert f"{url}/config.pbtxt" in str(caught.value)
    assert str(copy) not in str(caught.value)
