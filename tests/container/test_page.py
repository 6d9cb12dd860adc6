"""docs/07-image.md: its commands work as written."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from tests.box.running import free_port
from tests.container.running import PAGE, Container, podman

BUILD, RUN = re.findall(r"```sh\n(.*?)```", PAGE, re.S)[0].splitlines()


def test_the_first_command_builds_what_the_second_runs(image: str, demo: Path, cat: bytes) -> None:
    # The image of these tests was made by the first one, under a name of their own.
    assert BUILD == "make image"
    words = shlex.split(RUN)
    assert words[:2] == ["docker", "run"]
    port = free_port()
    here = {"8080:8080": f"127.0.0.1:{port}:8080", "trireme:cpu": image}
    mount = next(word for word in words if word.endswith(":/opt/ml/model:ro"))
    here[mount] = f"{demo}:/opt/ml/model:ro"
    box = Container(podman("run", "--detach", *(here.get(word, word) for word in words[2:])), port)
    try:
        box.wait_ready()
        assert box.send(cat, "image/png", "resnet").ok
        assert box.stop() == 0
    finally:
        podman("rm", "--force", "--ignore", "--time", "0", box.id)


def test_every_layer_of_the_image_is_on_the_page(image: str) -> None:
    sizes = podman("history", "--format", "{{.Size}}", "--human=false", image).split()
    assert "docker history" in PAGE
    packages = max(int(size) for size in sizes) / 1e6
    shown = float(re.findall(r"^\| the packages: .* \| (\d+) \|$", PAGE, re.M)[0])
    assert abs(packages - shown) < 30
