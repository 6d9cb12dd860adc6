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


def model(folder: Path, name: str, config: str, more: str = ENABLED) -> None:
    (folder / name / "1").mkdir(parents=True)
    (folder / name / "config.pbtxt").write_text(f'backend: "python" {config} {more}')


def ensemble(folder: Path, name: str, config: str, *parts: str, outputs: tuple[str, ...] = ("y",)) -> None:
    """Write an ensemble that asks for the cache, with a step for each of the models."""
    maps = " ".join(f'output_map {{ key: "{output}" value: "{output}" }}' for output in outputs)
    steps = " ".join(
        f'step {{ model_name: "{part}" model_version: -1 input_map {{ key: "x0" value: "x0" }} {maps} }}'
        for part in parts
    )
    (folder / name / "1").mkdir(parents=True)
    text = f'platform: "ensemble" {config} ensemble_scheduling {{ {steps} }} {ENABLED}'
    (folder / name / "config.pbtxt").write_text(text)


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
    ],
)
def test_an_ensemble_whose_requests_may_share_a_key_is_refused(
    tmp_path: Path, config: str, refused: bool
) -> None:
    model(tmp_path, "part", f"{inputs('3')} {OUTPUT}", "")
    ensemble(tmp_path, "m", config, "part")
    assert ("m" in response_cache.refused(models.read(tmp_path))) is refused


def test_only_ensembles_get_the_cache_and_none_around_a_model_with_state(tmp_path: Path) -> None:
    """Triton keeps the failures of other models."""
    tensors = f"{inputs('3')} {OUTPUT}"
    model(tmp_path, "plain", tensors)
    model(tmp_path, "sequence", f"max_batch_size: 8 {tensors} sequence_batching {{}}", "")
    model(tmp_path, "decoupled", f"{tensors} model_transaction_policy {{ decoupled: true }}", "")
    for part in ("plain", "sequence", "decoupled"):
        ensemble(tmp_path, f"around_{part}", tensors, part)
        ensemble(tmp_path, f"around_around_{part}", tensors, f"around_{part}")
    refused = response_cache.refused(models.read(tmp_path)).keys()
    stateful = {
        f"{around}{part}" for around in ("around_", "around_around_") for part in ("sequence", "decoupled")
    }
    assert refused == {"plain", *stateful}


def test_an_ensembles_step_with_several_outputs_is_refused(tmp_path: Path) -> None:
    two = 'output [{ name: "y" data_type: TYPE_FP32 dims: [ 1 ] }, { name: "z" data_type: TYPE_FP32 dims: [ 1 ] }]'
    model(tmp_path, "part", f"{inputs('3')} {two}", "")
    for name, outputs in (("one", OUTPUT), ("two", two), ("alone", two)):
        ensemble(tmp_path, name, f"{inputs('3')} {outputs}", "part")
    ensemble(tmp_path, "all", f"{inputs('3')} {OUTPUT}", "one", "two")
    inspected = models.read(tmp_path)
    assert response_cache.refused(inspected).keys() == {"two"}
    chosen = {each.name: response_cache.cached_outputs(each) for each in inspected}
    assert chosen == {"one": {"y"}, "two": {"y", "z"}, "alone": {"y", "z"}, "all": {"y"}, "part": set()}


def test_triton_does_not_see_that_a_refused_model_asks(tmp_path: Path) -> None:
    model(tmp_path / "repository", "part", f"{inputs('3')} {OUTPUT}")
    ensemble(tmp_path / "repository", "open", f"{inputs('-1, -1')} {OUTPUT}", "part")
    ensemble(tmp_path / "repository", "fixed", f"{inputs('3')} {OUTPUT}", "part")
    machine = Machine(gpu=False)
    for folder, has_cache, asking in (("with", True, {"fixed"}), ("without", False, set())):
        served = overlay.for_triton(tmp_path / "repository", tmp_path / folder, machine, has_cache=has_cache)
        configs = {each.name: each.config for each in models.read(served)}
        assert {name for name, config in configs.items() if config and config.response_cache.enable} == asking
