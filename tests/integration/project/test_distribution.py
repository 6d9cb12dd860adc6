"""The wheels and the sdist have what they need, and nothing else; ``sm`` works without the repository."""

from __future__ import annotations

import json
import subprocess
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

from sm import __version__, cli
from sm.settings import HERE
from tests.support.distribution import Distribution, build, install_without_dependencies

#: The place in the wheels of each of the repository's folders.
WHEEL_FOLDERS = {
    "sm/": "sm/",
    "clients/": "sm/_data/clients/",
    "model/": "sm/_data/model/",
    "examples/": "sm/_data/examples/",
    "nginx.conf": "sm/_data/nginx.conf",
}
EXTENSIONS_FOLDERS = {"extensions/trireme_extensions/": "trireme_extensions/"}
TOOLS_FOLDERS = {"tools/trireme_tools/": "trireme_tools/", "deploy/": "trireme_tools/deploy_files/"}
#: What the sdist leaves out: large results, and the set-up of our own CI.
NOT_IN_SDIST = ("bench/results/", "bench/reports/", ".ci/", ".github/")
#: Loads every command, finds the clients, and prints them with the places of the files that they need.
PROGRAM = """
import json
from sm import cli
from sm.control import pages
from sm.plugins.sources import discover
from sm.server.supervisor import nginx
from sm.settings import HERE, Settings
for command in cli.installed().values():
    cli.load(command.arguments), cli.load(command.run)
clients = [source.name for source in discover(Settings.read({}).clients)]
places = [HERE, pages.FOLDER / "index.html", nginx.TEMPLATE, HERE / "model/resnet/recipe/recipe.py"]
print(json.dumps([clients, [str(place) for place in places if place.exists()]]))
"""


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return build(tmp_path_factory.mktemp("dist"))


def tracked_files() -> list[str]:
    """The repository's files, including those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.check_output(command, cwd=HERE, text=True)
    return [name for name in listing.splitlines() if (HERE / name).is_file()]


@pytest.mark.parametrize(
    ("name", "folders"),
    [("wheel", WHEEL_FOLDERS), ("extensions", EXTENSIONS_FOLDERS), ("tools", TOOLS_FOLDERS)],
)
def test_a_wheel_has_every_file_of_its_package_and_its_data_and_no_other(
    distribution: Distribution, name: str, folders: dict[str, str]
) -> None:
    expected = {
        target + file.removeprefix(source)
        for file in tracked_files()
        for source, target in folders.items()
        if file.startswith(source)
    }
    with zipfile.ZipFile(getattr(distribution, name)) as archive:
        packed = {file for file in archive.namelist() if ".dist-info/" not in file}
    assert len(expected) > 20
    assert packed == expected


def test_the_sdist_has_the_whole_repository(distribution: Distribution) -> None:
    with tarfile.open(distribution.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert [name for name in {*tracked_files()} - packed if not name.startswith(NOT_IN_SDIST)] == []


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def test_the_metadata_has_versions_and_extras_and_the_runtime_needs_no_tool(
    distribution: Distribution,
) -> None:
    runtime, tools = metadata_of(distribution.wheel), metadata_of(distribution.tools)
    extensions = metadata_of(distribution.extensions)
    assert (runtime["Name"], runtime["Version"]) == ("trireme-serving", __version__)
    assert runtime["Requires-Python"] == ">=3.11"
    assert {"cpu", "deploy", "extensions", "otel", "s3", "tools", "tune"} <= set(
        runtime.get_all("Provides-Extra", [])
    )
    assert extensions["Version"] == tools["Version"] == __version__
    assert f"trireme-serving=={__version__}" in extensions.get_all("Requires-Dist", [])
    needed = {f"trireme-serving=={__version__}", f"trireme-extensions=={__version__}"}
    assert needed <= set(tools.get_all("Requires-Dist", []))
    always = [name for name in runtime.get_all("Requires-Dist", []) if "extra ==" not in name]
    assert [name for name in always if name.startswith(("boto3", "trireme-", "matplotlib"))] == []


def test_every_file_and_every_command_is_found_without_the_repository(
    distribution: Distribution, tmp_path: Path
) -> None:
    wheels = (distribution.wheel, distribution.extensions, distribution.tools)
    installed = install_without_dependencies(tmp_path / "home", *wheels)
    command, environment = [str(installed.python), "-c", PROGRAM], installed.environment()
    printed = subprocess.check_output(command, cwd=installed.home, env=environment, timeout=60)
    clients, places = json.loads(printed)
    assert clients == ["bert_base", "resnet", "yolov5"]
    assert [Path(place).is_relative_to(installed.home) for place in places] == [True] * 4


def test_the_runtime_alone_has_its_commands_and_names_those_of_the_tools(
    distribution: Distribution, tmp_path: Path
) -> None:
    runtime = install_without_dependencies(tmp_path / "runtime", distribution.wheel)
    text = " ".join(runtime.sm("--help").stdout.split())
    assert ", ".join(cli.EXTENSIONS) in text and ", ".join(cli.TOOLS) in text
    assert [name for name in cli.COMMANDS if runtime.sm(name, "--help").returncode] == []
    assert runtime.sm("prepare").returncode == 1
