"""The engine of a model on the CPU target: candidates of a processor, the gate, the choice and its cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trireme_extensions.convert.onnx_cpu import engines
from trireme_extensions.convert.onnx_cpu.engines import (
    FP32,
    GOLDEN,
    Candidate,
    Chooser,
    Wanted,
)
from trireme_tools.build.golden_answers import Golden

BOTH = {"onnxruntime": "1.31", "openvino": "2026.4"}
OV_BF16, OV_FP32, OV_INT8 = (Candidate("openvino", name) for name in ("bf16", "fp32", "int8"))
ZEN5, OLD = {"avx2", "avx512_bf16", "avx512_vnni", "AuthenticAMD"}, {"avx2"}
EMERALD_RAPIDS = {"avx2", "avx512_bf16", "avx512_vnni", "GenuineIntel"}


def numbers(*values: float) -> np.ndarray[Any, Any]:
    return np.array([values], np.float32)


def golden(name: str, value: Any, kind: str = "", **others: Any) -> Golden:
    return Golden([{"x": numbers(1)}], [{name: value, **others}], {name: kind} if kind else {})


@pytest.mark.parametrize(
    ("flags", "machine", "is_quantized", "expected"),
    [
        (ZEN5, "x86_64", False, [OV_BF16, FP32]),
        ({"amx_bf16"}, "x86_64", False, [OV_BF16, FP32]),
        # Without AMX, which a virtual machine may hide, Intel's bf16 is slower than fp32.
        (EMERALD_RAPIDS | {"amx_bf16"}, "x86_64", False, [OV_BF16, FP32]),
        (EMERALD_RAPIDS, "x86_64", False, [FP32]),
        (EMERALD_RAPIDS, "x86_64", True, [OV_INT8, FP32]),
        (OLD, "x86_64", False, [FP32]),
        ({"asimd", "bf16"}, "aarch64", False, [OV_BF16, Candidate("onnxruntime", "bf16"), FP32]),
        (ZEN5, "x86_64", True, [OV_INT8, OV_BF16, FP32]),
        (OLD, "x86_64", True, [OV_INT8, FP32]),
        ({"sse4_2"}, "x86_64", True, [FP32]),
    ],
)
def test_a_processor_tries_what_it_has_instructions_for(
    flags: set[str], machine: str, is_quantized: bool, expected: list[Candidate]
) -> None:
    found = engines.candidates(Wanted(), flags, BOTH, machine, is_quantized=is_quantized)
    assert found == expected


@pytest.mark.parametrize(
    ("wanted", "measured", "expected"),
    [
        # The manifest's order comes first.
        (Wanted(), ("openvino fp32", "openvino bf16", "onnxruntime fp32"), [OV_FP32, OV_BF16, FP32]),
        (Wanted(), ("onnxruntime fp32", "openvino bf16"), [FP32]),
        (Wanted(), ("a later version's", "openvino bf16"), [OV_BF16, FP32]),
        # The configuration narrows them.
        (Wanted(precision="fp32"), (), [FP32]),
        (Wanted(engine="openvino"), (), [OV_BF16, OV_FP32, FP32]),
        (Wanted(engine="openvino", precision="fp32"), (), [OV_FP32, FP32]),
        (Wanted(precision="bf16"), (), [OV_BF16, FP32]),
    ],
)
def test_the_manifest_orders_the_candidates_and_the_configuration_narrows_them(
    wanted: Wanted, measured: tuple[str, ...], expected: list[Candidate]
) -> None:
    assert engines.candidates(wanted, ZEN5, BOTH, "x86_64", measured=measured) == expected


def test_the_setting_overrides_the_configuration_which_says_whether_triton_makes_batches() -> None:
    config = {"parameters": {"precision": {"string_value": "bf16"}, "tolerance": {"string_value": "0.02"}}}
    assert Wanted.read(config, {}) == Wanted(precision="bf16", tolerance=0.02)
    assert Wanted.read(config, {"TRIREME_PRECISION": "fp32"}) == Wanted("onnxruntime", "fp32")
    assert Wanted.read({"max_batch_size": 8}, {}).by_record
    assert not Wanted.read({"max_batch_size": 8, "dynamic_batching": {}}, {}).by_record
    assert not Wanted.read({"max_batch_size": 0}, {}).by_record


def test_the_flags_are_those_of_the_kernel(tmp_path: Path) -> None:
    cpu = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: fpu avx512_bf16\nbugs\t: none\n"
    (tmp_path / "x86").write_text(f"{cpu}\n{cpu}")
    (tmp_path / "arm").write_text("processor\t: 0\nFeatures\t: asimd bf16\n")
    assert engines.processor_flags(tmp_path / "x86") == {"fpu", "avx512_bf16", "GenuineIntel"}
    assert engines.processor_flags(tmp_path / "arm") == {"asimd", "bf16"}
    assert engines.processor_flags(tmp_path / "none") == frozenset()


@pytest.mark.parametrize("wanted, measured", [(Wanted(precision="bf16"), ()), (Wanted(), engines.ALL)])
def test_bf16_that_is_asked_for_or_was_measured_needs_its_instructions_alone(
    wanted: Wanted, measured: tuple[str, ...]
) -> None:
    assert OV_BF16 in engines.candidates(wanted, EMERALD_RAPIDS, BOTH, "x86_64", measured=measured)
    assert OV_BF16 not in engines.candidates(wanted, OLD, BOTH, "x86_64", measured=measured)


def test_what_int8_leaves_computes_in_bf16_where_that_is_fast() -> None:
    flags = (ZEN5, EMERALD_RAPIDS, OLD)
    assert [engines.computes_bf16("int8", each) for each in flags] == [True, False, False]
    assert [engines.computes_bf16("bf16", each) for each in flags] == [True, True, False]
    assert not engines.computes_bf16("fp32", ZEN5)


class Played(Chooser):
    """A chooser whose candidates give these results; it notes which ones were tried."""

    results: Mapping[Candidate, dict[str, Any]]

    def attempt(self, candidate: Candidate) -> dict[str, Any]:
        self.tried = [*getattr(self, "tried", []), candidate]
        return self.results[candidate]


GOOD = {"difference": 0.004}


@pytest.fixture
def version(tmp_path: Path) -> Path:
    folder = tmp_path / "mine" / "1"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(b"graph")
    golden("y", numbers(1)).write(folder / GOLDEN)
    return folder


def chooser(
    version: Path,
    results: Mapping[Candidate, dict[str, Any]],
    wanted: Wanted | None = None,
    **arguments: Any,
) -> Played:
    options = {"flags": ZEN5, "installed": BOTH, "cache": version.parents[1] / "cache", **arguments}
    played = Played(version, wanted or Wanted(), **options)
    played.results = results
    return played


FAULTY = {"fault": "logits differs by 3.0 %"}
OV_FIRST = json.dumps({"engines": ["openvino fp32", "openvino bf16", "onnxruntime fp32"]})


@pytest.mark.parametrize(
    ("results", "wanted", "options", "manifest", "expected", "lacks"),
    [
        ({OV_BF16: FAULTY}, Wanted(), {}, None, FP32, False),
        ({OV_BF16: GOOD, OV_FP32: GOOD}, Wanted(), {}, OV_FIRST, OV_FP32, False),
        ({OV_FP32: GOOD}, Wanted(engine="openvino", precision="fp32"), {}, None, OV_FP32, False),
        # A manifest that cannot be read has no order.
        *(
            ({OV_BF16: GOOD}, Wanted(), {}, text, OV_BF16, False)
            for text in ("", "[]", '{"engines": 7}', '{"engines": [null]}', "\xff")
        ),
        # Nothing is tried.
        ({}, Wanted(precision="fp32"), {}, None, FP32, False),
        ({}, Wanted(), {"flags": OLD}, None, FP32, False),
        ({}, Wanted(), {"installed": {"onnxruntime": "1.31"}}, None, FP32, True),
    ],
)
def test_the_choice_follows_results_wishes_and_the_manifests_order(
    version: Path,
    results: Mapping[Candidate, dict[str, Any]],
    wanted: Wanted,
    options: dict[str, Any],
    manifest: str | None,
    expected: Candidate,
    lacks: bool,
) -> None:
    if manifest is not None:
        (version / "manifest.json").write_text(manifest)
    choice = chooser(version, results, wanted, **options).choose()
    assert (choice.candidate, choice.lacks) == (expected, lacks)
    assert len(choice.faults) == (FAULTY in results.values())


def test_the_first_within_the_tolerance_is_taken_and_without_golden_data_fp32(version: Path) -> None:
    played = chooser(version, {OV_BF16: GOOD})
    choice = played.choose()
    assert (choice.candidate, choice.difference, choice.lacks) == (OV_BF16, 0.004, False)
    assert "avx512_bf16" in choice.why
    assert played.tried == [OV_BF16]
    (version / GOLDEN).unlink()
    choice = chooser(version, {}).choose()
    assert (choice.candidate, choice.lacks) == (FP32, True)


@pytest.mark.parametrize("result", [GOOD, {"fault": "the process that tried it ended with -11"}])
def test_the_next_start_tries_nothing(version: Path, result: dict[str, Any]) -> None:
    first = chooser(version, {OV_BF16: result}).choose()
    assert chooser(version, {}).choose() == first


def test_what_may_come_from_other_work_on_the_machine_is_tried_again(version: Path) -> None:
    results = {OV_BF16: {"fault": "the process that tried it ended with -9", "passing": True}}
    assert chooser(version, results).choose().candidate == FP32
    assert chooser(version, {OV_BF16: GOOD}).choose().candidate == OV_BF16


@pytest.mark.parametrize(
    ("file", "content", "options"),
    [
        ("", b"", {"flags": ZEN5 | {"amx_bf16"}}),
        ("", b"", {"installed": {**BOTH, "openvino": "2027.0"}}),
        ("", b"", {"wanted": Wanted(tolerance=0.02)}),
        ("model.onnx", b"other graph", {}),
        ("manifest.json", b'{"engines": ["openvino bf16", "onnxruntime fp32"]}', {}),
        (GOLDEN, b"", {}),
    ],
)
def test_a_change_makes_it_choose_anew(version: Path, file: str, content: bytes, options: Any) -> None:
    chooser(version, {OV_BF16: GOOD}).choose()
    if file == GOLDEN:
        golden("y", numbers(2)).write(version / GOLDEN)
    elif file:
        (version / file).write_bytes(content)
    other = chooser(version, {OV_BF16: GOOD}, **options)
    other.choose()
    assert other.tried == [OV_BF16]


@pytest.mark.parametrize("content", ["", "[]", '{"engine": "openvino"}', '{"engine": "x", "faults": []}'])
def test_a_damaged_file_is_replaced(version: Path, content: str) -> None:
    chooser(version, {OV_BF16: GOOD}).choose()
    (file,) = (version.parents[1] / "cache").glob("*.json")
    file.write_text(content)
    assert chooser(version, {OV_BF16: GOOD}).choose().candidate == OV_BF16
    assert json.loads(file.read_text())["engine"] == "openvino"


def test_a_folder_that_cannot_be_written_is_no_fault(version: Path) -> None:
    (version.parents[1] / "cache").write_text("a file where the folder should be")
    assert chooser(version, {OV_BF16: GOOD}).choose().candidate == OV_BF16
    assert chooser(version, {OV_BF16: GOOD}).choose().candidate == OV_BF16
