"""An ensemble is drawn: boxes in columns, no line through a box, what is wrong in red."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.repository import ensembles, models
from sm.settings import HERE
from sm.tools.inspect import svg
from sm.tools.inspect.graph_layout import LETTER, Box, Layout
from tests.inspection.repositories import BAD, GOOD, ensemble, step, write

LONG = "a_name_that_goes_on_and_on_until_nobody_reads_it_any_more"
#: ``x`` is wanted by the first and by the last of three; the last gives two outputs.
WIDE = ensemble(
    step("front", {"x": "x"}, {"mid": LONG}),
    step("back", {"mid": LONG}, {"y": "between"}),
    step("both", {"one": "x", "other": "between", "third": LONG}, {"y": "y"}),
)
MODEL = st.sampled_from(["front", "back", "gone", "any"])
TENSORS = st.lists(st.sampled_from("abcdef"), max_size=4, unique=True)
NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("repository"), any="")


def drawn(repository: Path) -> ElementTree.Element:
    return ElementTree.fromstring(svg.draw(models.read(repository)))


def texts(picture: ElementTree.Element, colour: str = "") -> list[str]:
    found = picture.iter(f"{NAMESPACE}text")
    return [each.text or "" for each in found if not colour or each.get("fill") == colour]


def layout(repository: Path) -> Layout:
    (found,) = ensembles.read(models.read(repository))
    return Layout.of(found)


def apart(one: Box, other: Box) -> bool:
    beside = one.x + one.width <= other.x or other.x + other.width <= one.x
    return beside or one.y + one.height <= other.y or other.y + other.height <= one.y


@pytest.mark.parametrize("name", ["wide", *BAD])
def test_boxes_stand_apart_and_lines_go_from_one_column_to_the_next(tmp_path: Path, name: str) -> None:
    stands_apart(layout(write(tmp_path, **{name: BAD.get(name, (WIDE,))[0]})))


def stands_apart(made: Layout) -> None:
    assert all(apart(one, other) for one, other in itertools.combinations(made.boxes, 2))
    assert all(made.boxes[link.target].column == made.boxes[link.source].column + 1 for link in made.links)
    assert all(box.x >= 0 and box.x + box.width <= made.width for box in made.boxes)
    assert all(box.y >= 0 and box.y + box.height <= made.height for box in made.boxes)


def test_a_long_name_has_the_room_that_it_needs(tmp_path: Path) -> None:
    made = layout(write(tmp_path, wide=WIDE))
    steps = [box for box in made.boxes if box.node and box.node.kind == "step"]
    assert steps[1].x - (steps[0].x + steps[0].width) > len(LONG) * LETTER


def test_steps_have_their_model_version_and_backend_and_edges_their_tensor(tmp_path: Path) -> None:
    said = texts(drawn(write(tmp_path, good=GOOD)))
    assert [said.count(word) for word in ("front", "back", "version 1 · python", "m", "FP32 [4]")] == [
        *(1, 1),
        *(2, 1, 3),
    ]


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_red_and_said_below(tmp_path: Path, name: str) -> None:
    picture = drawn(write(tmp_path, **{name: BAD[name][0]}))
    assert BAD[name][1] in " ".join(texts(picture, svg.WRONG))
    shapes = [each for each in picture.iter() if each.get("stroke") == svg.WRONG]
    assert shapes or name in ("no_input", "no_output", "unused", "loose")


def test_nothing_is_red_where_nothing_is_wrong(tmp_path: Path) -> None:
    assert svg.WRONG not in svg.draw(models.read(write(tmp_path, good=GOOD)))


def test_names_are_text_whatever_is_in_them(tmp_path: Path) -> None:
    text = GOOD.replace("'m'", "'<b>&m\\001'")
    assert "<b>&m\N{REPLACEMENT CHARACTER}" in texts(drawn(write(tmp_path, good=text)))


def test_all_ensembles_are_drawn_and_the_same_repository_gives_the_same_bytes(tmp_path: Path) -> None:
    pictures = [
        svg.draw(models.read(write(tmp_path / folder / "models", one=GOOD, two=WIDE))) for folder in "ab"
    ]
    assert pictures[0] == pictures[1]
    assert {"one", "two"} <= set(texts(ElementTree.fromstring(pictures[0])))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(wired=st.lists(st.tuples(MODEL, TENSORS, TENSORS), max_size=7), inputs=TENSORS, outputs=TENSORS)
def test_whatever_is_wired_is_drawn(
    repository: Path, wired: list[tuple[str, list[str], list[str]]], inputs: list[str], outputs: list[str]
) -> None:
    ends = [(side, name) for side, names in (("input", inputs), ("output", outputs)) for name in names]
    tensors = [f"{side} {{ name: '{name}' data_type: TYPE_FP32 dims: 4 }}" for side, name in ends]
    steps = [step(model, *({f"p{n}": n for n in names} for names in sides)) for model, *sides in wired]
    text = f"platform: 'ensemble' {' '.join(tensors)} ensemble_scheduling {{ {' '.join(steps)} }}"
    (repository / "any" / "config.pbtxt").write_text(text)
    stands_apart(layout(repository))
    drawn(repository)


def test_an_ensemble_of_nothing_is_drawn_as_nothing(tmp_path: Path) -> None:
    assert texts(drawn(write(tmp_path, empty="platform: 'ensemble'"))) == ["empty", "ensemble · no batches"]


def command(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "sm.cli", "inspect", *map(str, words)]
    return subprocess.run(line, cwd=HERE, capture_output=True, text=True)


def test_the_command_writes_the_picture_and_its_status_says_whether_all_is_well(tmp_path: Path) -> None:
    good, bad = write(tmp_path / "good", good=GOOD), write(tmp_path / "bad", bad=BAD["missing"][0])
    done = command(good, "--graph", tmp_path / "good.svg")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert command(good, "--graph").stdout == (tmp_path / "good.svg").read_text()
    done = command(bad, "--graph", tmp_path / "bad.svg")
    assert done.returncode == 1
    assert done.stderr.startswith("problem: ")
    assert (tmp_path / "bad.svg").is_file()


def test_the_command_says_that_there_is_nothing_to_draw_and_that_it_cannot_write(tmp_path: Path) -> None:
    empty = command(write(tmp_path / "none"), "--graph")
    assert (empty.returncode, empty.stderr) == (1, f"sm: there is no ensemble in {tmp_path}/none to draw.\n")
    nowhere = command(write(tmp_path / "good", good=GOOD), "--graph", tmp_path / "nowhere" / "a.svg")
    assert nowhere.returncode == 1
    assert nowhere.stderr == f"sm: {tmp_path}/nowhere/a.svg cannot be written: No such file or directory.\n"
