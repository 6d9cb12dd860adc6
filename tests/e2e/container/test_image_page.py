"""docs/run/image.md: its commands work as written."""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.boxes import free_port
from tests.support.containers import PAGE, Container, podman

BUILD, RUN = re.findall(r"```sh\n(.*?)```", PAGE, re.S)[0].splitlines()
LOCKED_BLOCK = re.findall(r"```sh\n(.*?)```", PAGE.partition("## Locked down")[2], re.S)[0]
LOCKED_COMMANDS = LOCKED_BLOCK.replace("\\\n", " ").strip().splitlines()


@contextmanager
def run_from_page(command: str, image: str, demo: Path) -> Iterator[Container]:
    """Start a container by a command of the page, in the background and with this test's image, models and port."""
    words = shlex.split(command)
    assert words[:2] == ["docker", "run"]
    port = free_port()
    replacements = {"8080:8080": f"127.0.0.1:{port}:8080", "trireme:cpu": image}
    mount = next(word for word in words if word.endswith(":/opt/ml/model:ro"))
    replacements[mount] = f"{demo}:/opt/ml/model:ro"
    box = Container(podman("run", "--detach", *(replacements.get(word, word) for word in words[2:])), port)
    try:
        box.wait_ready()
        yield box
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", box.id)


def test_the_first_command_builds_what_the_second_runs(image: str, demo: Path, cat: bytes) -> None:
    # The tests' image was built by this command, under another name.
    assert BUILD == "make image"
    with run_from_page(RUN, image, demo) as box:
        assert box.send(cat, "image/png", "resnet").ok
        podman("stop", "--time", "30", box.id)


@pytest.mark.parametrize("command", LOCKED_COMMANDS)
def test_a_locked_down_container_serves(image: str, demo: Path, cat: bytes, command: str) -> None:
    with run_from_page(command, image, demo) as box:
        assert box.send(cat, "image/png", "resnet").ok
        status = box.python("print(open('/proc/1/status').read())")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["NoNewPrivs"] == "1"
        # It has no capability and can get none.
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        write = "import pathlib\ntry: pathlib.Path('/home/x').touch()\nexcept OSError as error: print(error.errno)"
        assert box.python(write) == str(errno.EROFS)
