"""``sm inspect --graph`` writes the ensembles as a Mermaid flowchart, with the faults in a red node."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.commands import inspect_command
from sm.repository import models
from tests.integration.repository.ensemble_repositories import (
    INVALID_ENSEMBLES,
    VALID_ENSEMBLE,
    ensemble,
    step,
    write_repository,
)
from tests.support.sm_command import run_sm

#: The first and the last of three steps read ``x``; the last reads three tensors.
WIDE = ensemble(
    step("front", {"x": "x"}, {"mid": "middle"}),
    step("back", {"mid": "middle"}, {"y": "between"}),
    step("both", {"one": "x", "other": "between", "third": "middle"}, {"y": "y"}),
)
MODEL = st.sampled_from(["front", "back", "gone", "any"])
TENSORS = st.lists(
    st.sampled_from(["a", "b", "end", 'c"];', "<br>", "%%{", "#1;", "`d`"]), max_size=4, unique=True
)

#: The lines of a flowchart in Mermaid's grammar. A label is quoted and has no special character.
LABEL = r'"((?:[^"#$%&:;<>\\`{|}]|<br>|#\d+;)*)"'
NODE = re.compile(rf"        (e\d+(?:n\d+|faults))(?:\(\[{LABEL}\]\)|\[{LABEL}\]):::(\w+)")
LINK = re.compile(rf"        (e\d+n\d+) -->\|{LABEL}\| (e\d+n\d+)")
SUBGRAPH = re.compile(rf"    subgraph e\d+\[{LABEL}\]")
STYLE = re.compile(r"    classDef \w+ \S+:\S+(?: 4)?|        direction LR|    end")


class Flowchart:
    """A flowchart, parsed line by line; a line of unknown form fails the test."""

    def __init__(self, text: str) -> None:
        first, *lines = text.removesuffix("\n").split("\n")
        assert first == "flowchart LR"
        self.titles: list[str] = []
        self.nodes: dict[str, tuple[str, str]] = {}
        self.links: list[tuple[str, str, str]] = []
        for line in lines:
            if node := NODE.fullmatch(line):
                name, rounded, square, style = node.groups()
                self.nodes[name] = (visible_text(rounded or square), style)
            elif link := LINK.fullmatch(line):
                source, label, target = link.groups()
                self.links.append((source, visible_text(label), target))
            elif subgraph := SUBGRAPH.fullmatch(line):
                self.titles.append(visible_text(subgraph[1]))
            else:
                assert STYLE.fullmatch(line), line
        assert {end for source, _, target in self.links for end in (source, target)} <= set(self.nodes)
        self.wrong_nodes = [label for label, style in self.nodes.values() if style in ("wrong", "nobody")]


def visible_text(label: str) -> str:
    """The text that a reader sees: character codes decoded, a line break as a space."""
    return re.sub(r"#(\d+);", lambda number: chr(int(number[1])), label.replace("<br>", " "))


def parse_flowchart(repository: Path) -> Flowchart:
    return Flowchart(inspect_command.flowchart(models.read(repository)))


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"), any="")


def test_a_node_shows_model_version_and_backend_and_a_link_its_tensor(tmp_path: Path) -> None:
    chart = parse_flowchart(write_repository(tmp_path, good=VALID_ENSEMBLE))
    assert chart.titles == ["good · ensemble · batches of up to 8"]
    assert list(chart.nodes.values()) == [
        ("x input", "input"),
        ("front version 1 · python", "step"),
        ("back version 1 · python", "step"),
        ("y output", "output"),
    ]
    assert chart.links == [
        ("e0n0", "x FP32 [4]", "e0n1"),
        ("e0n1", "m FP32 [4] mid → mid", "e0n2"),
        ("e0n2", "y FP32 [4]", "e0n3"),
    ]


def test_a_tensor_that_two_steps_read_has_a_link_to_each(tmp_path: Path) -> None:
    links = parse_flowchart(write_repository(tmp_path, wide=WIDE)).links
    ends = [(source, target) for source, label, target in links if label.startswith("x ")]
    assert ends == [("e0n0", "e0n1"), ("e0n0", "e0n3")]


@pytest.mark.parametrize("name", INVALID_ENSEMBLES)
def test_a_fault_is_red_and_explained_in_a_node_of_its_own(tmp_path: Path, name: str) -> None:
    chart = parse_flowchart(write_repository(tmp_path, **{name: INVALID_ENSEMBLES[name][0]}))
    sentences, style = chart.nodes["e0faults"]
    assert style == "wrong"
    assert all(word in sentences for word in INVALID_ENSEMBLES[name][1])


def test_several_ensembles_good_and_empty_ones_are_shown_with_nothing_red(tmp_path: Path) -> None:
    chart = parse_flowchart(write_repository(tmp_path, one=VALID_ENSEMBLE, two="platform: 'ensemble'"))
    assert [title.split()[0] for title in chart.titles] == ["one", "two"]
    assert chart.wrong_nodes == []
    assert not [name for name in chart.nodes if name.startswith("e1") or name.endswith("faults")]


def test_special_characters_in_names_are_shown_as_text(tmp_path: Path) -> None:
    text = VALID_ENSEMBLE.replace("'m'", "'<b>&m\\001\"]; end'")
    label = parse_flowchart(write_repository(tmp_path, good=text)).links[1][1]
    assert '<b>&m\N{REPLACEMENT CHARACTER}"]; end FP32' in label


@settings(max_examples=60, derandomize=True)
@given(wiring=st.lists(st.tuples(MODEL, TENSORS, TENSORS), max_size=7), inputs=TENSORS, outputs=TENSORS)
def test_any_wiring_gives_a_valid_flowchart(
    repository: Path, wiring: list[tuple[str, list[str], list[str]]], inputs: list[str], outputs: list[str]
) -> None:
    tensor_names = [
        (side, name) for side, names in (("input", inputs), ("output", outputs)) for name in names
    ]
    tensors = [f"{side} {{ name: '{name}' data_type: TYPE_FP32 dims: 4 }}" for side, name in tensor_names]
    steps = [
        step(model, *({f"p{number}": name for number, name in enumerate(names)} for names in sides))
        for model, *sides in wiring
    ]
    text = f"platform: 'ensemble' {' '.join(tensors)} ensemble_scheduling {{ {' '.join(steps)} }}"
    (repository / "any" / "config.pbtxt").write_text(text)
    parse_flowchart(repository)


def test_the_command_writes_the_flowchart_and_its_exit_status_reports_problems(tmp_path: Path) -> None:
    bad = write_repository(tmp_path / "bad", bad=INVALID_ENSEMBLES["missing"][0])
    written = run_sm("inspect", bad, "--graph", tmp_path / "bad.mmd")
    printed = run_sm("inspect", bad, "--graph")
    assert (written.returncode, written.stdout, bool(written.stderr)) == (1, "", True)
    assert printed.stdout == (tmp_path / "bad.mmd").read_text()
