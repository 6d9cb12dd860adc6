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
from tests.support.snapshots import check_snapshot

#: The first and the last of three steps read ``x``; the last reads three tensors.
WIDE = ensemble(
    step("front", {"x": "x"}, {"mid": "middle"}),
    step("back", {"mid": "middle"}, {"y": "between"}),
    step("back", {"mid": "x", "other": "between", "third": "middle"}, {"y": "y"}),
)
MODEL = st.sampled_from(["front", "back", "gone", "any"])
TENSORS = st.lists(
    st.sampled_from(["a", "b", "end", 'c"];', "<br>", "%%{", "#1;", "`d`"]), max_size=4, unique=True
)
#: The lines of a flowchart in Mermaid's grammar. A label is quoted and has no special character.
LABEL = r'"(?:[^"#$%&:;<>\\`{|}]|<br>|#\d+;)*"'
LINE = re.compile(
    rf"        e\d+(?:n\d+|faults)(?:\(\[{LABEL}\]\)|\[{LABEL}\]):::\w+"
    rf"|        (e\d+n\d+) -->\|{LABEL}\| (e\d+n\d+)"
    rf"|    subgraph e\d+\[{LABEL}\]"
    r"|    classDef \w+ \S+:\S+(?: 4)?|        direction LR|    end"
)


def flowchart(repository: Path) -> str:
    """Write a flowchart, each line of which is one of Mermaid's, and each end of a link a node."""
    text = inspect_command.flowchart(models.read(repository))
    first, *lines = text.removesuffix("\n").split("\n")
    assert first == "flowchart LR"
    for line in lines:
        found = LINE.fullmatch(line)
        assert found, line
        assert all(f"        {end}" in text for end in found.groups() if end)
    return text


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"), any="")


def test_good_wide_empty_and_odd_ensembles_are_drawn_as_they_were_read_last(tmp_path: Path) -> None:
    """Steps with model, version and backend, links with their tensors, and special characters as codes."""
    odd = VALID_ENSEMBLE.replace("'m'", "'<b>&m\\001\"]; end'")
    text = flowchart(
        write_repository(tmp_path, empty="platform: 'ensemble'", good=VALID_ENSEMBLE, odd=odd, wide=WIDE)
    )
    check_snapshot("ensembles.mmd", text.replace(str(tmp_path), "FOLDER"))


@pytest.mark.parametrize("name", INVALID_ENSEMBLES)
def test_a_fault_is_red_and_explained_in_a_node_of_its_own(tmp_path: Path, name: str) -> None:
    text = flowchart(write_repository(tmp_path, **{name: INVALID_ENSEMBLES[name][0]}))
    (faults,) = (line for line in text.splitlines() if "        e0faults" in line)
    assert faults.endswith(":::wrong")


@settings(max_examples=60, derandomize=True)
@given(wiring=st.lists(st.tuples(MODEL, TENSORS, TENSORS), max_size=7), inputs=TENSORS, outputs=TENSORS)
def test_any_wiring_gives_a_valid_flowchart(
    repository: Path, wiring: list[tuple[str, list[str], list[str]]], inputs: list[str], outputs: list[str]
) -> None:
    sides = {"input": inputs, "output": outputs}
    tensors = [
        f"{side} {{ name: '{name}' data_type: TYPE_FP32 dims: 4 }}"
        for side, names in sides.items()
        for name in names
    ]
    steps = [
        step(model, *({f"p{number}": name for number, name in enumerate(names)} for names in each))
        for model, *each in wiring
    ]
    text = f"platform: 'ensemble' {' '.join(tensors)} ensemble_scheduling {{ {' '.join(steps)} }}"
    (repository / "any" / "config.pbtxt").write_text(text)
    flowchart(repository)


def test_the_command_writes_the_flowchart_and_its_exit_status_reports_problems(tmp_path: Path) -> None:
    bad = write_repository(tmp_path / "bad", bad=INVALID_ENSEMBLES["missing"][0])
    written = run_sm("inspect", bad, "--graph", tmp_path / "bad.mmd")
    printed = run_sm("inspect", bad, "--graph")
    assert (written.returncode, written.stdout, bool(written.stderr)) == (1, "", True)
    assert printed.stdout == (tmp_path / "bad.mmd").read_text()
