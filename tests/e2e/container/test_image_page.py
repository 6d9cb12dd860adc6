"""docs/run/image.md: its commands work as written, and the answers are the golden ones."""

from __future__ import annotations

import errno
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.boxes import free_port
from tests.support.containers import PAGE, Container, podman
from tests.support.sm_command import run_sm

BUILD, RUN = re.findall(r"```sh\n(.*?)```", PAGE, re.S)[0].splitlines()
LOCKED_BLOCK = re.findall(r"```sh\n(.*?)```", PAGE.partition("## Locked down")[2], re.S)[0]
LOCKED_COMMANDS = LOCKED_BLOCK.replace("\\\n", " ").strip().splitlines()
#: Prints what the kernel allows the supervisor, the users of all processes, and why no file can be written.
LOCKS = """
import glob, json, pathlib, re
statuses = [pathlib.Path(path).read_text() for path in glob.glob('/proc/[0-9]*/status')]
users = sorted({int(re.search(r'Uid:\\t(\\d+)', status)[1]) for status in statuses})
supervisor = pathlib.Path('/proc/1/status').read_text()
try:
    pathlib.Path('/home/x').touch()
except OSError as error:
    fields = [int(re.search(rf'{name}:\\t(\\w+)', supervisor)[1], 16) for name in ('NoNewPrivs', 'CapEff', 'CapBnd')]
    print(json.dumps([users, fields, error.errno]))
"""


@contextmanager
def run_from_page(command: str, image: str, demo: Path) -> Iterator[Container]:
    """Start a container by a command of the page, in the background and with this test's image, models and port.

    In fp32: the tests compare exact digits, and the trials of faster engines take most of a start.
    """
    words = shlex.split(command)
    assert words[:2] == ["docker", "run"]
    port = free_port()
    mount = next(word for word in words if word.endswith(":/opt/ml/model:ro"))
    own = {"8080:8080": f"127.0.0.1:{port}:8080", "trireme:cpu": image, mount: f"{demo}:/opt/ml/model:ro"}
    words = ["-e", "TRIREME_PRECISION=fp32", *(own.get(word, word) for word in words[2:])]
    box = Container(podman("run", "--detach", *words), port)
    try:
        box.wait_ready()
        yield box
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", box.id)


def test_the_image_gives_the_clients_golden_answers_and_sends_tensors_through_shared_memory(
    image: str, demo: Path
) -> None:
    # The tests' image was built by the first command, under another name.
    assert BUILD == "make image"
    with run_from_page(RUN, image, demo) as container:
        tested = run_sm("test", "--url", container.url)
        rows = [line.split()[:2] for line in tested.stdout.splitlines()]
        assert rows == [["bert_base", "equal"], ["resnet", "equal"], ["yolov5", "equal"]], tested.stderr
        # The command gives it a gigabyte. The two words of a text are too small for it.
        assert container.transports() == {"shared_memory": 2.0, "grpc": 1.0}
        refused = container.send(b"no picture", "image/png", "resnet")
        assert (refused.status_code, refused.json()["code"]) == (400, "bad_input")


def test_a_number_that_is_not_roots_is_the_images_user(image: str) -> None:
    # Kubernetes cannot tell whether a name is root's.
    assert podman("image", "inspect", "--format", "{{.Config.User}}", image) == "1000:1000"


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", LOCKED_COMMANDS, ids=["user", "root"])
def test_a_locked_down_container_serves(image: str, demo: Path, cat: bytes, command: str) -> None:
    with run_from_page(command, image, demo) as box:
        assert box.send(cat, "image/png", "resnet").ok
        users, fields, error = json.loads(box.python(LOCKS))
        assert users == ([0] if "--user 0" in command else [1000])
        # It can get no new rights, and has no capability and can get none.
        assert (fields, error) == ([1, 0, 0], errno.EROFS)
