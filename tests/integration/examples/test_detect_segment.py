"""The example detect_segment in a real box: an ensemble of three models that share an environment."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import requests
from numpy.typing import NDArray
from PIL import Image

from sm.settings import HERE
from sm.tools.golden import differences
from tests.support.boxes import RunningBox, running_box

MODEL = "detect_segment"
SAMPLE = HERE / "examples/detect_segment/repository/code/detect_segment/sample"
COLLAGE = (SAMPLE / "collage.jpg").read_bytes()
GOLDEN = json.loads((SAMPLE / "golden.json").read_bytes())
#: What pycocotools makes of the masks it is given, and of the run lengths.
PYCOCOTOOLS = """
import json, sys
import numpy as np
from pycocotools import mask
made = {}
for height, width in json.loads(sys.argv[1]):
    grid = np.random.default_rng(height).random((height, width))
    for share in (0.0, 0.02, 0.5, 1.0):
        pixels = grid < share
        counts = mask.encode(np.asfortranarray(pixels, np.uint8))["counts"].decode()
        made[f"{height} {width} {share}"] = [counts, pixels.astype(int).tolist()]
asked = json.load(sys.stdin)
areas = [int(mask.area({**each, "counts": each["counts"].encode()})) for each in asked]
print(json.dumps({"made": made, "areas": areas}))
"""

Mask = NDArray[np.bool_]


@pytest.fixture(scope="module")
def repository(example_repository: Callable[[str], Path]) -> Path:
    return example_repository(MODEL)


@pytest.fixture(scope="module")
def box(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBox]:
    folder = tmp_path_factory.mktemp("detect_segment")
    with running_box(folder, repository, TRIREME_CLIENTS="") as box:
        yield box


@pytest.fixture(scope="module")
def masked(box: RunningBox) -> list[dict[str, Any]]:
    """Every object of the collage with its mask as run lengths."""
    return list(result(ask(box, COLLAGE, output="rle")))


def ask(box: RunningBox, picture: bytes, accept: str = "application/json", **asked: str) -> requests.Response:
    """The picture as the whole body, what is asked of it in the query."""
    headers = {"Content-Type": "image/jpeg", "Accept": accept}
    query = {"modelname": MODEL, **asked}
    url = f"{box.url}/invocations"
    return requests.post(url, data=picture, params=query, headers=headers, timeout=60)


def result(response: requests.Response) -> Any:
    assert response.status_code == 200, response.text
    return response.json()["result"]


def jpeg(pixels: NDArray[Any]) -> bytes:
    return bytes(cv2.imencode(".jpg", pixels)[1])


def decoded(mask: dict[str, Any]) -> Mask:
    """COCO's run lengths, read by hand: 5 bits a letter, each run from the fourth on told by its difference."""
    runs: list[int] = []
    bits = ""
    for letter in mask["counts"].encode():
        group = f"{letter - 48:06b}"
        bits = group[1:] + bits
        if group[0] == "0":
            value = int(bits, 2) - (2 ** len(bits) if bits[0] == "1" else 0)
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            bits = ""
    height, width = mask["size"]
    flat = [np.full(run, place % 2 == 1) for place, run in enumerate(runs)]
    pixels: Mask = np.concatenate(flat).reshape(width, height).T
    return pixels


def shown(answer: str) -> Mask:
    """A PNG in base64, as what is white in it."""
    with Image.open(io.BytesIO(base64.b64decode(answer))) as picture:
        return np.asarray(picture.convert("1"), np.bool_)


def overlap(one: Mask, other: Mask) -> float:
    return float((one & other).sum() / (one | other).sum())


def test_without_parameters_it_answers_the_boxes_of_all_objects(box: RunningBox) -> None:
    found = result(box.invoke(MODEL, json.loads((SAMPLE / "payload.json").read_bytes())))
    assert list(differences(found, GOLDEN)) == []


@pytest.mark.parametrize(
    ("asked", "labels"),
    [
        ("cat", ["cat"]),
        ("A cat. A dining table.", ["cat", "dining table"]),
        (["Cup", "person"], ["person", "cup"]),
        ("bus", []),
    ],
)
def test_only_the_classes_that_a_text_names_are_found(
    box: RunningBox, asked: object, labels: list[str]
) -> None:
    image = base64.b64encode(COLLAGE).decode()
    answer = box.invoke(MODEL, {"image": image}, parameters={"classes": asked})
    assert [each["label"] for each in result(answer)] == labels


def test_an_unknown_class_is_a_422_that_lists_near_matches(box: RunningBox) -> None:
    response = ask(box, COLLAGE, classes="cat, motorbikes")
    assert response.status_code == 422
    assert "'motorbikes'; did you mean motorcycle" in response.json()["error"]
    assert (response.json()["field"], response.json()["near"][0]) == ("parameters.classes", "motorcycle")


def test_each_object_has_the_mask_that_another_code_gives_it(masked: list[dict[str, Any]]) -> None:
    with Image.open(SAMPLE / "masks.png") as picture:
        golden = np.split(np.asarray(picture), len(GOLDEN))
    assert [each["label"] for each in masked] == [each["label"] for each in GOLDEN]
    for each, known in zip(masked, golden, strict=True):
        assert overlap(decoded(each["mask"]), known) > 0.85, each["label"]
        assert each["quality"] > 0.9


def test_a_mask_as_png_is_the_same_mask(box: RunningBox, masked: list[dict[str, Any]]) -> None:
    found = result(ask(box, COLLAGE, output="png"))
    assert len(found) == len(masked)
    for png, rle in zip(found, masked, strict=True):
        assert png["mask"]["content_type"] == "image/png"
        assert (shown(png["mask"]["image"]) == decoded(rle["mask"])).all()


def test_run_lengths_are_those_of_pycocotools_which_only_the_environment_has(
    box: RunningBox, repository: Path, masked: list[dict[str, Any]]
) -> None:
    assert find_spec("pycocotools") is None
    environment = repository / "detect/env"
    said = subprocess.run(
        [environment / "bin/python3", "-c", PYCOCOTOOLS, json.dumps([[1, 1], [7, 90], [64, 5]])],
        input=json.dumps([each["mask"] for each in masked]),
        env={**os.environ, "LD_LIBRARY_PATH": str(environment / "lib"), "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(said.stdout)
    assert told["areas"] == [int(decoded(each["mask"]).sum()) for each in masked]
    rle = _client_module("rle")
    for name, (counts, pixels) in told["made"].items():
        height, width, _ = name.split()
        assert (
            rle.decode(counts.encode(), int(height), int(width)).tolist() == np.array(pixels, bool).tolist()
        )


def test_run_lengths_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="no mask of 2 by 2 pixels"):
        _client_module("rle").decode(b"5", 2, 2)


def test_a_caller_of_pictures_gets_the_objects_drawn(box: RunningBox, masked: list[dict[str, Any]]) -> None:
    response = ask(box, COLLAGE, accept="image/png", classes="cat")
    assert response.headers["Content-Type"] == "image/png"
    drawn = np.asarray(Image.open(io.BytesIO(response.content))).astype(int)
    changed = np.abs(drawn - np.asarray(Image.open(io.BytesIO(COLLAGE)))).sum(axis=2) > 0
    # The tint, the outline around it and the name.
    assert overlap(changed, decoded(masked[0]["mask"])) > 0.9
    in_json = result(ask(box, COLLAGE, output="picture", classes="cat"))
    assert base64.b64decode(in_json["image"]) == response.content


@pytest.mark.parametrize("output", ["boxes", "rle", "png"])
def test_a_picture_with_nothing_in_it_is_an_empty_list(box: RunningBox, output: str) -> None:
    assert result(ask(box, jpeg(np.full((90, 120, 3), 200, np.uint8)), output=output)) == []


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 5000, 3), (3000, 1, 3)])
def test_tiny_and_narrow_pictures_are_answered(box: RunningBox, shape: tuple[int, ...]) -> None:
    assert result(ask(box, jpeg(np.zeros(shape, np.uint8)), output="rle", threshold="0.9")) == []


def test_a_huge_picture_has_boxes_and_masks_in_its_own_pixels(
    box: RunningBox, masked: list[dict[str, Any]]
) -> None:
    pixels = cv2.imdecode(np.frombuffer(COLLAGE, np.uint8), cv2.IMREAD_COLOR)
    answer = ask(box, jpeg(cv2.resize(pixels, (8000, 4570))), output="rle", classes="cat")
    (cat,) = result(answer)
    assert cat["mask"]["size"] == [4570, 8000]
    assert overlap(decoded(cat["mask"])[5::10, 5::10], decoded(masked[0]["mask"])) > 0.95
    assert cat["box"]["x2"] == pytest.approx(10 * GOLDEN[0]["box"]["x2"], abs=80)


@pytest.mark.parametrize(
    ("body", "why"),
    [(COLLAGE[:-5000], "truncated"), (b"no picture", "not a JPEG, PNG or WebP")],
)
def test_garbage_is_a_400_that_says_so(box: RunningBox, body: bytes, why: str) -> None:
    response = ask(box, body, output="rle")
    assert response.status_code == 400
    assert why in response.json()["error"]


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"threshold": "2"}, "parameters.threshold"),
        ({"output": "svg"}, "parameters.output"),
        ({"colour": "red"}, "parameters.colour"),
    ],
)
def test_a_wrong_parameter_is_a_422_that_names_it(box: RunningBox, asked: dict[str, str], field: str) -> None:
    response = ask(box, COLLAGE, **asked)
    assert (response.status_code, response.json()["field"]) == (422, field)


@pytest.mark.parametrize("output", ["boxes", "rle"])
def test_a_version_that_the_ensemble_has_not_is_a_404(box: RunningBox, output: str) -> None:
    assert ask(box, COLLAGE, output=output, version="9").status_code == 404


def test_the_ensemble_refuses_a_class_that_its_detector_has_not(box: RunningBox) -> None:
    """Asked past the client, through Triton's own protocol."""
    inputs = [
        {"name": "image", "datatype": "UINT8", "shape": [1, 1, 3], "data": [0, 0, 0]},
        {"name": "classes", "datatype": "INT32", "shape": [1], "data": [80]},
        {"name": "threshold", "datatype": "FP32", "shape": [1], "data": [0.5]},
        {"name": "size", "datatype": "INT32", "shape": [2], "data": [1, 1]},
    ]
    response = requests.post(f"{box.url}/v2/models/{MODEL}/infer", json={"inputs": inputs}, timeout=60)
    assert response.status_code == 400
    assert "classes from 0 to 79" in response.json()["error"]


def _client_module(name: str) -> Any:
    """A module beside the client, loaded from its file: it is in no package."""
    spec = spec_from_file_location(f"detect_segment_{name}", SAMPLE.parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
