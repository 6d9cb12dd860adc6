"""The wheels and the sdist have what they need, and nothing else; ``sm`` works without the repository."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest

from sm import __version__, cli
from sm.commands import DEVELOPER_MACHINE
from sm.settings import HERE
from tests.support.distribution import Distribution, Installed, build, install_without_dependencies

#: The place in the wheels of each of the repository's folders.
WHEEL_FOLDERS = {
    "sm/": "sm/",
    "clients/": "sm/_data/clients/",
    "model/": "sm/_data/model/",
    "examples/": "sm/_data/examples/",
    "nginx.conf": "sm/_data/nginx.conf",
}
TOOLS_FOLDERS = {"tools/trireme_tools/": "trireme_tools/", "deploy/": "trireme_tools/deploy_files/"}
#: What the sdist leaves out: large results, and the set-up of our own CI.
NOT_IN_SDIST = ("bench/results/", "bench/reports/", ".ci/", ".github/")


@pytest.fixture(scope="module")
def distribution(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    return build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The runtime and the tools."""
    return install_without_dependencies(
        tmp_path_factory.mktemp("home"), distribution.wheel, distribution.tools
    )


@pytest.fixture(scope="module")
def runtime(distribution: Distribution, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """The runtime alone."""
    return install_without_dependencies(tmp_path_factory.mktemp("runtime"), distribution.wheel)


def tracked_files() -> list[str]:
    """The repository's files, including those that are not committed yet."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=True)
    return [name for name in listing.stdout.splitlines() if (HERE / name).is_file()]


@pytest.mark.parametrize(
    ("name", "folders", "least"), [("wheel", WHEEL_FOLDERS, 300), ("tools", TOOLS_FOLDERS, 100)]
)
def test_a_wheel_has_every_file_of_its_package_and_its_data_and_no_other(
    distribution: Distribution, name: str, folders: dict[str, str], least: int
) -> None:
    expected = {
        target + file.removeprefix(source)
        for file in tracked_files()
        for source, target in folders.items()
        if file.startswith(source)
    }
    with zipfile.ZipFile(getattr(distribution, name)) as archive:
        packed = {file for file in archive.namelist() if ".dist-info/" not in file}
    assert len(expected) > least
    assert packed == expected


def test_the_sdist_has_the_whole_repository(distribution: Distribution) -> None:
    with tarfile.open(distribution.sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert [
        name for name in tracked_files() if name not in packed and not name.startswith(NOT_IN_SDIST)
    ] == []


def test_the_metadata_has_name_version_pythons_and_extras(distribution: Distribution) -> None:
    metadata = metadata_of(distribution.wheel)
    assert (metadata["Name"], metadata["Version"]) == ("trireme-serving", __version__)
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.14"}
    assert {"cpu", "deploy", "otel", "s3", "tools", "tune"} <= set(metadata.get_all("Provides-Extra", []))


def test_the_tools_need_the_runtime_of_their_version_and_the_runtime_none_of_what_they_need(
    distribution: Distribution,
) -> None:
    tools = metadata_of(distribution.tools)
    assert (tools["Name"], tools["Version"]) == ("trireme-tools", __version__)
    needed = tools.get_all("Requires-Dist", [])
    assert f"trireme-serving=={__version__}" in needed
    assert any(name.startswith("boto3") for name in needed)
    always = [
        name
        for name in metadata_of(distribution.wheel).get_all("Requires-Dist", [])
        if "extra ==" not in name
    ]
    assert [name for name in always if name.startswith(("boto3", "trireme-tools", "matplotlib"))] == []


def metadata_of(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def test_twine_and_check_wheel_contents_accept_the_files(distribution: Distribution) -> None:
    for command in (
        [
            "twine",
            "check",
            "--strict",
            *map(str, (distribution.wheel, distribution.sdist, distribution.tools)),
        ],
        ["check_wheel_contents", str(distribution.wheel)],
        ["check_wheel_contents", "--config", "tools/pyproject.toml", str(distribution.tools)],
    ):
        completed = subprocess.run(
            [sys.executable, "-m", *command], cwd=HERE, capture_output=True, text=True, check=False
        )
        assert completed.returncode == 0, completed.stdout + completed.stderr


def run_python(installed: Installed, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [installed.python, "-c", code],
        cwd=installed.home,
        env=installed.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_sm_prints_its_version(installed: Installed) -> None:
    assert installed.sm("--version").stdout == f"trireme-serving {__version__}\n"


def test_every_file_and_every_command_is_found_without_the_repository(installed: Installed) -> None:
    code = (
        "import json; from sm import cli; from sm.settings import HERE, Settings\n"
        "from sm.plugins.loading import discover; from sm.control import pages\n"
        "from sm.server.supervisor import nginx\n"
        "for command in cli.installed().values(): cli.load(command.arguments), cli.load(command.run)\n"
        "clients = [source.name for source in discover(Settings.read({}).clients)]\n"
        "places = [HERE, pages.FOLDER / 'index.html', nginx.TEMPLATE, HERE / 'model/resnet/recipe/recipe.py']\n"
        "print(json.dumps([clients, [str(place) for place in places if place.exists()]]))"
    )
    completed = run_python(installed, code)
    assert completed.returncode == 0, completed.stderr
    clients, places = json.loads(completed.stdout)
    assert clients == ["bert_base", "resnet", "yolov5"]
    assert len(places) == 4
    assert all(Path(place).is_relative_to(installed.home) for place in places)


def test_the_runtime_alone_has_its_commands_and_names_those_of_the_tools(runtime: Installed) -> None:
    text = " ".join(runtime.sm("--help").stdout.split())
    assert f"Not installed here: {', '.join(cli.TOOLS)}. {DEVELOPER_MACHINE}" in text
    for name in cli.COMMANDS:
        assert runtime.sm(name, "--help").returncode == 0


@pytest.mark.parametrize("words", [("deploy", "ships"), ("prepare",), ("demo",), ("serve", "--prepare")])
def test_without_the_tools_their_commands_say_how_to_install_them(
    runtime: Installed, words: tuple[str, ...]
) -> None:
    name = "prepare" if words[0] == "serve" else words[0]
    completed = runtime.sm(*words)
    assert (completed.returncode, completed.stdout) == (1, "")
    assert completed.stderr == f"sm: 'sm {name}' is not installed here. {DEVELOPER_MACHINE}\n"


@pytest.mark.exhaustive
def test_a_team_can_write_inspect_package_and_describe_a_model_with_the_wheels(installed: Installed) -> None:
    image = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/trireme:1"
    for arguments, expected in (
        (("new-client", "signs"), "next: sm check-client signs"),
        (("inspect", "model"), "signs  python   1 "),
        (("package", "model", "--out", "signs.tar.gz"), "sha256"),
        (
            ("template", "signs", "--image", image, "--model-data", "s3://models/signs.tar.gz"),
            '"AWS::SageMaker::Endpoint"',
        ),
        (("template", "signs", "--format", "kubernetes", "--image", image), "kind: Deployment"),
    ):
        completed = installed.sm(*arguments)
        assert completed.returncode == 0, completed.stderr
        assert expected in completed.stdout, completed.stdout + completed.stderr
    with tarfile.open(installed.home / "signs.tar.gz") as archive:
        assert "signs/config.pbtxt" in archive.getnames()


def test_a_missing_extra_is_reported_with_the_command_that_installs_it(installed: Installed) -> None:
    code = (
        "import sys; sys.modules['onnx'] = None; sys.argv = ['sm', 'prepare']\n"
        "from sm import cli; sys.exit(cli.main())"
    )
    completed = run_python(installed, code)
    package = "'trireme-serving[cpu]'"
    assert completed.returncode == 1
    assert f"pip install {package}" in completed.stderr
