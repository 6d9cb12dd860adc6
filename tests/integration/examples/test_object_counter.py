"""The example object_counter: a detector through ``sm new-model``, and its script on a folder of pictures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sm.settings import HERE, Settings
from tests.support.box_fixture import Boxes
from tests.support.demo_box import demo
from tests.support.task_models import new_model
from trireme_tools.cache import Cache
from trireme_tools.prepare.demo import DemoPreparation
from trireme_tools.prepare.recipes import Recipe
from trireme_tools.progress import Progress

__all__ = ["demo"]

SAMPLES = HERE / "clients" / "yolov5" / "sample"


@pytest.mark.exhaustive
def test_the_script_counts_what_each_picture_shows(boxes: Boxes, demo: Path, tmp_path: Path) -> None:
    recipe, cache = HERE / "model" / "yolov5", Cache(Settings.read({}).cache)
    built = DemoPreparation(cache, recipe.parent, Progress(sys.stderr)).build(Recipe.load(recipe))
    options = ("--task", "object-detection", "--labels", HERE / "clients" / "yolov5" / "coco.txt")
    new_model("counter", tmp_path, built / "model.onnx", *options, "--preprocess", recipe / "preprocess.json")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for name in ("chelsea.jpg", "collage.jpg"):
        (pictures / name).symlink_to(SAMPLES / name)
    (pictures / "damaged.png").write_bytes(b"not a picture")
    with boxes.own(tmp_path / "model") as box:
        script = HERE / "examples" / "object_counter" / "count.py"
        told = subprocess.run(
            (sys.executable, script, pictures, box.url), capture_output=True, text=True, check=True
        )
    chelsea, collage, damaged, total = told.stdout.splitlines()
    assert chelsea == "chelsea.jpg: 1 cat"
    assert "cat" in collage
    assert damaged == "damaged.png: the bytes are not a JPEG, PNG or WebP picture"
    assert total.startswith("3 pictures: ")
