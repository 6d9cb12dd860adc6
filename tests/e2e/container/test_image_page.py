"""docs/run/image.md: its commands work as written, and the answers are those of ``make serve``."""

from __future__ import annotations

import errno
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.box_fixture import Boxes
from tests.support.boxes import free_port
from tests.support.containers import PAGE, Container, podman

BUILD, RUN = re.findall(r"```sh\n(.*?)```", PAGE, re.S)[0].splitlines()
LOCKED_BLOCK = re.findall(r"```sh\n(.*?)```", PAGE.partition("## Locked down")[2], re.S)[0]
LOCKED_COMMANDS = LOCKED_BLOCK.replace("\\\n", " ").strip().splitlines()
MASKED = b'{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'
#: Prints the users of all processes of a container.
ALL_USERS = (
    "import glob, re\n"
    "statuses = [open(path).read() for path in glob.glob('/proc/[0-9]*/status')]\n"
    "print({int(re.search(r'Uid:\\t(\\d+)', status)[1]) for status in statuses})"
)


@contextmanager
def run_from_page(command: str, image: str, demo: Path) -> Iterator[Container]:
    """Start a container by a command of the page, in the background and with this test's image, models and port.

    In fp32: the tests compare exact digits, and the trials of faster engines take most of a start.
    """
    words = shlex.split(command)
    assert words[:2] == ["docker", "run"]
    port = free_port()
    replacements = {"8080:8080": f"127.0.0.1:{port}:8080", "trireme:cpu": image}
    mount = next(word for word in words if word.endswith(":/opt/ml/model:ro"))
    replacements[mount] = f"{demo}:/opt/ml/model:ro"
    words = ["-e", "TRIREME_PRECISION=fp32", *(replacements.get(word, word) for word in words[2:])]
    box = Container(podman("run", "--detach", *words), port)
    try:
        box.wait_ready()
        yield box
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", box.id)


def test_the_image_answers_as_make_serve_does_and_sends_tensors_through_shared_memory(
    boxes: Boxes, image: str, demo: Path, cat: bytes, street: bytes
) -> None:
    # The tests' image was built by the first command, under another name.
    assert BUILD == "make image"
    requests = [
        (cat, "image/png", "resnet"),
        (street, "image/jpeg", "resnet"),
        (street, "image/jpeg", "yolov5"),
        (cat, "image/png", "yolov5"),
        (MASKED, "application/json", ""),
        (b"no picture", "image/png", "resnet"),
    ]
    # Byte for byte, so both run the models in fp32.
    run = RUN.replace("docker run", "docker run -e TRIREME_PRECISION=fp32")
    with boxes.own(demo) as box, run_from_page(run, image, demo) as container:
        for body, content_type, model in requests:
            headers = {"X-Amzn-SageMaker-Inference-Id": "same"}
            from_box = box.send(
                body, content_type, headers=headers, params={"modelname": model} if model else {}
            )
            from_container = container.send(body, content_type, model)
            assert (from_container.status_code, from_container.headers["Content-Type"]) == (
                from_box.status_code,
                from_box.headers["Content-Type"],
            )
            if from_container.ok:
                assert from_container.content == from_box.content
            else:
                assert from_container.json()["error"] == from_box.json()["error"]
        # The command gives it a gigabyte. The two words of a text are too small for it.
        assert container.transports() == {"shared_memory": 4.0, "grpc": 1.0}


def test_a_number_that_is_not_roots_is_the_images_user(image: str) -> None:
    # Kubernetes cannot tell whether a name is root's.
    assert podman("image", "inspect", "--format", "{{.Config.User}}", image) == "1000:1000"


@pytest.mark.exhaustive
@pytest.mark.parametrize("command", LOCKED_COMMANDS, ids=["user", "root"])
def test_a_locked_down_container_serves(image: str, demo: Path, cat: bytes, command: str) -> None:
    with run_from_page(command, image, demo) as box:
        assert box.send(cat, "image/png", "resnet").ok
        assert box.python(ALL_USERS) == ("{0}" if "--user 0" in command else "{1000}")
        status = box.python("print(open('/proc/1/status').read())")
        fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
        assert fields["NoNewPrivs"] == "1"
        # It has no capability and can get none.
        assert int(fields["CapEff"], 16) == int(fields["CapBnd"], 16) == 0
        write = "import pathlib\ntry: pathlib.Path('/home/x').touch()\nexcept OSError as error: print(error.errno)"
        assert box.python(write) == str(errno.EROFS)
        podman("stop", "--time", "30", box.id)
