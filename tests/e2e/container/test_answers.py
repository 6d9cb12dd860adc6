"""What the locked-down container answers, and what is in it."""

from __future__ import annotations

import ast
import json
import re

from sm.settings import HERE
from tests.support.containers import PAGE, Container

#: Megabytes of the image's Python: installed packages, and ``sm`` with its bytecode. Measured; 3 % may be added.
PYTHON_MB = {"site-packages": 755.0, "sm": 4.55}
#: The commands of ``docker run IMAGE …`` on ``docs/run/image.md``.
PAGE_COMMANDS = set(re.findall(r"^\| `([\w-]+)[^|]*` \|", PAGE.partition("## Models")[0], re.M))


def test_a_teams_model_and_client_are_served_from_a_read_only_mount(shared_container: Container) -> None:
    answer = shared_container.send(b"four", "text/plain", "team")
    assert answer.json() == {"modelname": "team", "result": [4.0, 4.0, 4.0]}
    # Triton takes the clients' folder for a model. The box does not.
    assert shared_container.models() == {"hostile", "large", "team", "tiny"}


def test_wheels_beside_the_code_are_installed_without_the_images_pip(shared_container: Container) -> None:
    assert shared_container.send(b"any", "text/plain", "tiny").json()["result"] == [17.0, 17.0, 17.0]


def test_large_tensors_are_answered_with_dockers_default_shared_memory(shared_container: Container) -> None:
    before = shared_container.transports()
    for _ in range(4):
        assert shared_container.send(b"four", "text/plain", "large").json()["result"] == [4.0, 4.0]
    # The tensors need more than the third of it that is for them, so they went as bytes.
    after = shared_container.transports()
    assert {name: after[name] - before[name] for name in after} == {"shared_memory": 0.0, "grpc": 4.0}


def test_the_page_says_what_a_hostile_model_can_do(shared_container: Container) -> None:
    page = (HERE / "docs/run/security.md").read_text()
    rows = dict(re.findall(r"^\| (.+?) \| (can|cannot) \|", page, re.MULTILINE))
    assert shared_container.infer("hostile") == rows


def test_the_python_part_has_its_recorded_size(shared_container: Container) -> None:
    code = (
        "import json, pathlib, sysconfig\n"
        "folders = {'site-packages': sysconfig.get_path('purelib'), 'sm': '/opt/trireme/sm'}\n"
        "sizes = lambda folder: (path.lstat().st_size for path in pathlib.Path(folder).rglob('*') if path.is_file())\n"
        "print(json.dumps({name: sum(sizes(folder)) / 1e6 for name, folder in folders.items()}))"
    )
    for name, megabytes in json.loads(shared_container.python(code)).items():
        assert 0.9 <= megabytes / PYTHON_MB[name] <= 1.03, f"{name}: write {megabytes:.2f} MB here"


def test_the_image_has_exactly_the_commands_of_its_page(shared_container: Container) -> None:
    code = (
        "from sm import cli\n"
        "here = cli.installed()\n"
        "[cli.load(place) for command in here.values() for place in (command.arguments, command.run)]\n"
        "print(*here)"
    )
    assert len(PAGE_COMMANDS) == 7
    assert set(shared_container.python(code).split()) == PAGE_COMMANDS


def test_the_image_has_what_s3_needs_and_not_the_other_services(shared_container: Container) -> None:
    code = "import boto3; s = boto3.Session(region_name='eu-west-1'); s.client('s3'); print(s.get_available_services())"
    services = ast.literal_eval(shared_container.python(code))
    assert {"s3"} <= {*services} <= {"s3", "sts", "sso", "sso-oidc", "signin"}
