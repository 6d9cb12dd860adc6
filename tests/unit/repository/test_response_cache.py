"""Which models may answer from Triton's response cache: those whose requests its key tells apart."""

from __future__ import annotations

from pathlib import Path

import pytest

from sm.repository import models, overlay, response_cache
from sm.repository.machine import Machine

ENABLED = "response_cache { enable: true }"
OUTPUT = 'output [{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }]'


def inputs(*dims: str) -> str:
    return " ".join(
        f'input {{ name: "x{number}" data_type: TYPE_FP32 dims: [ {each} ] }}'
        for number, each in enumerate(dims)
    )


def model(folder: Path, name: str, config: str) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(f'backend: "python" {config} {ENABLED}')


@pytest.mark.parametrize(
    ("config", "refused"),
    [
        (f"max_batch_size: 8 {inputs('3, 4')} {OUTPUT}", False),
        (f"{inputs('3, 4')} {OUTPUT}", False),
        (f"{inputs('3, -1')} {OUTPUT}", False),
        (f"max_batch_size: 8 {inputs('-1', '1')} {OUTPUT}", False),
        # The bytes of [1, 6] are those of [2, 3].
        (f"max_batch_size: 8 {inputs('-1')} {OUTPUT}", True),
        (f"max_batch_size: 8 {inputs('-1', '-1')} {OUTPUT}", True),
        (f"{inputs('-1, -1')} {OUTPUT}", True),
        (f"max_batch_size: 8 {inputs('-1, -1', '1')} {OUTPUT}", True),
        # Nobody knows them before Triton has completed the configuration.
        ("max_batch_size: 8", True),
        (f"max_batch_size: 8 {inputs('3')}", True),
        (f"max_batch_size: 8 {inputs('3')} {OUTPUT} sequence_batching {{}}", True),
        (f"{inputs('3')} {OUTPUT} model_transaction_policy {{ decoupled: true }}", True),
    ],
)
def test_a_model_whose_requests_may_share_a_key_is_refused(
    tmp_path: Path, config: str, refused: bool
) -> None:
    model(tmp_path, "m", config)
    assert ("m" in response_cache.refused(models.read(tmp_path))) is refused


def test_an_ensembles_step_with_several_outputs_is_refused(tmp_path: Path) -> None:
    two = 'output [{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "z" data_type: TYPE_FP32 dims: [ 1 ] }]'
    for name, outputs in (("one", OUTPUT), ("two", two), ("alone", two)):
        model(tmp_path, name, f"{inputs('3')} {outputs}")
    steps = " ".join(
        f'step {{ model_name: "{name}" model_version: -1 input_map {{ key: "x0" value: "x0" }} '
        f'output_map {{ key: "y" value: "{name}" }} }}'
        for name in ("one", "two")
    )
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "config.pbtxt").write_text(
        f'platform: "ensemble" {inputs("3")} {OUTPUT} ensemble_scheduling {{ {steps} }}'
    )
    inspected = models.read(tmp_path)
    assert response_cache.refused(inspected).keys() == {"two"}
    chosen = {each.name: response_cache.cached_outputs(each) for each in inspected}
    assert chosen == {"one": {"y"}, "two": {"y", "z"}, "alone": {"y", "z"}, "all": set()}


def test_triton_does_not_see_that_a_refused_model_asks(tmp_path: Path) -> None:
    model(tmp_path / "repository", "open", f"{inputs('-1, -1')} {OUTPUT}")
    model(tmp_path / "repository", "fixed", f"{inputs('3')} {OUTPUT}")
    machine = Machine(gpu=False)
    for folder, has_cache, asking in (("with", True, {"fixed"}), ("without", False, set())):
        served = overlay.for_triton(tmp_path / "repository", tmp_path / folder, machine, has_cache=has_cache)
        configs = {each.name: each.config for each in models.read(served)}
        assert {name for name, config in configs.items() if config and config.response_cache.enable} == asking
