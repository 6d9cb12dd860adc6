"""``sm inspect`` finds exactly those faults of an ensemble for which Triton would refuse it, and draws ensembles."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from sm.repository import models, problems
from tests.support.boxes import wait_until
from tests.support.plans import certain_problems
from tests.support.sm_command import run_sm
from tests.support.snapshots import check_snapshot
from tests.support.tritons import TRITON_TIMEOUT_S, Model, prepare_triton
from trireme_tools import flowchart as tool

FLOATS = ("FP32", [4])
BACK = 'return {"y": tensor(request, "mid") + 1}'
MODELS = {
    "front": Model(
        'return {"mid": tensor(request, "x") * 2}', {"x": FLOATS}, {"mid": FLOATS}, max_batch_size=8
    ),
    "back": Model(BACK, {"mid": FLOATS}, {"y": FLOATS}, max_batch_size=8),
    "small": Model(BACK, {"mid": FLOATS}, {"y": FLOATS}, max_batch_size=2),
    "words": Model(
        'return {"y": np.char.decode(tensor(request, "text").astype(bytes)).astype(object)}',
        {"text": ("STRING", [4])},
        {"y": ("STRING", [4])},
        max_batch_size=8,
    ),
}
X, Y = "name: 'x', data_type: TYPE_FP32, dims: 4", "name: 'y', data_type: TYPE_FP32, dims: 4"


def step(model: str, reads: dict[str, str], writes: dict[str, str]) -> str:
    """Return a step's configuration. ``reads`` and ``writes`` map a model's tensors to the ensemble's."""
    maps = [
        f"{side}_map {{ key: '{port}' value: '{tensor}' }}"
        for side, tensor_names in (("input", reads), ("output", writes))
        for port, tensor in tensor_names.items()
    ]
    return f"step {{ model_name: '{model}' model_version: -1 {' '.join(maps)} }}"


def ensemble(*steps: str, x: str = X, y: str = Y) -> str:
    return (
        f"platform: 'ensemble' max_batch_size: 8 input {{ {x} }} output {{ {y} }}\n"
        f"ensemble_scheduling {{ {' '.join(steps)} }}"
    )


FIRST = step("front", {"x": "x"}, {"mid": "m"})
LAST = step("back", {"mid": "m"}, {"y": "y"})
GOOD = ensemble(FIRST, LAST)
ANY_SIZE = ensemble(FIRST, LAST, x=X.replace("4", "-1"))
#: The first and the last of three steps read ``x``; the last reads three tensors.
WIDE = ensemble(
    step("front", {"x": "x"}, {"mid": "middle"}),
    step("back", {"mid": "middle"}, {"y": "between"}),
    step("back", {"mid": "x", "other": "between", "third": "middle"}, {"y": "y"}),
)
#: Invalid configurations, each with the names that the report of its fault has.
INVALID = {
    "missing": (ensemble(FIRST, step("gone", {"mid": "m"}, {"y": "y"})), ("'gone'",)),
    "no_input": (ensemble(FIRST, step("back", {"middle": "m"}, {"y": "y"})), ("'middle'", "'back'",)),
    "no_output": (ensemble(step("front", {"x": "x"}, {"end": "m"}), LAST), ("'end'", "'front'",)),
    "unmapped": (ensemble(FIRST, step("back", {}, {"y": "y"})), ("'mid'", "'back'",)),
    "nobody": (ensemble(FIRST, step("back", {"mid": "n"}, {"y": "y"})), ("'n'", "'back'",)),
    "no_end": (ensemble(FIRST, step("back", {"mid": "m"}, {"y": "z"})), ("'y'",)),
    "twice": (ensemble(FIRST, step("front", {"x": "x"}, {"mid": "m"}), LAST), ("'m'", "'front'",)),
    "datatype": (ensemble(FIRST, step("words", {"text": "m"}, {"y": "y"}), y=Y.replace("FP32", "STRING")), ("'m'", "STRING",)),
    "shape": (ensemble(FIRST, LAST, x=X.replace("4", "5")), ("'x'", "FP32 [5]",)),
    "batches": (ensemble(FIRST, step("small", {"mid": "m"}, {"y": "y"})), ("'small'",)),
    "circle": (ensemble(step("front", {"x": "n"}, {"mid": "m"}), step("back", {"mid": "m"}, {"y": "n"}), step("front", {"x": "x"}, {"mid": "o"}), step("back", {"mid": "o"}, {"y": "y"})), ("'front'", "'back'",)),
    "itself": (ensemble(step("itself", {"x": "x"}, {"y": "y"})), ("'itself'",)),
    "unused": (ensemble(step("front", {"x": "y"}, {"mid": "m"}), LAST), ("'x'",)),
    "loose": (ensemble(FIRST, step("front", {"x": "x"}, {"mid": "k"}), LAST), ("'k'", "'front'",)),
}  # fmt: skip


def write_repository(repository: Path, **ensembles: str) -> Path:
    """Write all the models and the given ensembles, and return the repository."""
    for name, model in MODELS.items():
        model.write(repository / name)
    for name, text in ensembles.items():
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(text)
    return repository


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
    text = tool.flowchart(models.read(repository))
    first, *lines = text.removesuffix("\n").split("\n")
    assert first == "flowchart LR"
    for line in lines:
        found = LINE.fullmatch(line)
        assert found, line
        assert all(f"        {end}" in text for end in found.groups() if end)
    return text


@pytest.mark.parametrize("name", INVALID)
def test_each_fault_of_an_ensemble_is_one_problem_and_red_in_a_node_of_its_own(
    tmp_path: Path, name: str
) -> None:
    text, words = INVALID[name]
    write_repository(tmp_path, **{name: text})
    found = certain_problems(tmp_path)
    (matching,) = (problem for problem in found if all(word in problem for word in words))
    assert matching.startswith(f"{tmp_path}/{name}/config.pbtxt ")
    assert matching in [problem.sentence for problem in problems.find(tmp_path)]
    (faults,) = (line for line in flowchart(tmp_path).splitlines() if "        e0faults" in line)
    assert faults.endswith(":::wrong")


def test_ensembles_that_call_each_other_are_a_problem(tmp_path: Path) -> None:
    itself = INVALID["itself"][0]
    write_repository(tmp_path, one=itself.replace("itself", "other"), other=itself.replace("itself", "one"))
    found = certain_problems(tmp_path)
    assert [re.findall(r"'(\w+)'", sentence) for sentence in found] == [["other", "one"], ["one", "other"]]


def test_triton_refuses_every_faulty_ensemble_and_loads_the_good_ones(tmp_path: Path) -> None:
    good = {"good": GOOD, "any_size": ANY_SIZE}
    assert certain_problems(write_repository(tmp_path / "good", **good)) == []
    triton = prepare_triton(tmp_path, [])
    write_repository(triton.box.repository, **good, **{name: text for name, (text, _) in INVALID.items()})

    def index() -> list[dict[str, str]]:
        """The models of a Triton that has tried to load all."""
        try:
            url = f"http://127.0.0.1:{triton.box.http_port}/v2/repository/index"
            rows: list[dict[str, str]] = requests.post(url, timeout=5).json()
        except requests.ConnectionError:
            return []
        return rows

    triton.launch()
    try:
        rows = wait_until(index, TRITON_TIMEOUT_S, "Triton's answer")
    finally:
        triton.stop()
    assert {row["name"] for row in rows if row.get("state") == "READY"} == {*good, *MODELS}


def test_good_wide_empty_and_odd_ensembles_are_drawn_as_they_were_read_last(tmp_path: Path) -> None:
    """Steps with model, version and backend, links with their tensors, and special characters as codes."""
    odd = GOOD.replace("'m'", "'<b>&m\\001\"]; end'")
    write_repository(tmp_path, empty="platform: 'ensemble'", good=GOOD, odd=odd, wide=WIDE)
    check_snapshot("ensembles.mmd", flowchart(tmp_path).replace(str(tmp_path), "FOLDER"))


@pytest.fixture(scope="module")
def any_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_repository(tmp_path_factory.mktemp("repository"), any="")


MODEL = st.sampled_from(["front", "back", "gone", "any"])
TENSORS = st.lists(
    st.sampled_from(["a", "b", "end", 'c"];', "<br>", "%%{", "#1;", "`d`"]), max_size=4, unique=True
)


@settings(max_examples=60, derandomize=True)
@given(wiring=st.lists(st.tuples(MODEL, TENSORS, TENSORS), max_size=7), inputs=TENSORS, outputs=TENSORS)
def test_any_wiring_gives_a_valid_flowchart(
    any_repository: Path,
    wiring: list[tuple[str, list[str], list[str]]],
    inputs: list[str],
    outputs: list[str],
) -> None:
    sides = [("input", name) for name in inputs] + [("output", name) for name in outputs]
    tensors = [f"{side} {{ name: '{name}' data_type: TYPE_FP32 dims: 4 }}" for side, name in sides]
    steps = [
        step(model, *({f"p{number}": name for number, name in enumerate(names)} for names in each))
        for model, *each in wiring
    ]
    text = f"platform: 'ensemble' {' '.join(tensors)} ensemble_scheduling {{ {' '.join(steps)} }}"
    (any_repository / "any" / "config.pbtxt").write_text(text)
    flowchart(any_repository)


def test_the_command_writes_the_flowchart_and_its_exit_status_reports_problems(tmp_path: Path) -> None:
    bad = write_repository(tmp_path / "bad", bad=INVALID["missing"][0])
    written = run_sm("inspect", bad, "--graph", tmp_path / "bad.mmd")
    printed = run_sm("inspect", bad, "--graph")
    assert (written.returncode, written.stdout, bool(written.stderr)) == (1, "", True)
    assert printed.stdout == (tmp_path / "bad.mmd").read_text()
