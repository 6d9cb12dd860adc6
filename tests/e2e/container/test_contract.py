"""The executable contract against the image: the same rows as against a box that ``make serve`` starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.container.promises import make_readable, promises_by_state, write_models
from tests.support.containers import running_container
from tests.support.model_archives import ArchiveFolder, chain_config, multiplying_model

BATCH = ("-e", "SAGEMAKER_BATCH=true", "-e", "SAGEMAKER_BATCH_STRATEGY=MULTI_RECORD")
SINGLE = ("-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo", "-e", "SAGEMAKER_ENABLE_STATEFUL_SESSIONS=true")
INSIDE = "/opt/ml/models"


@pytest.mark.parametrize(
    ("mode", "flags"),
    [("single", SINGLE), pytest.param("batch", BATCH, marks=pytest.mark.exhaustive)],
)
def test_a_container_keeps_every_promise_of_the_contract(
    image: str, tmp_path: Path, mode: str, flags: tuple[str, ...]
) -> None:
    with running_container(
        image, write_models(tmp_path), *flags, "-e", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=echo"
    ) as box:
        promises = promises_by_state(tmp_path, box.url, "--mode", mode)
    assert set(promises) <= {"has", "not asked"}, promises
    assert len(promises["has"]) > 5


@pytest.mark.exhaustive
def test_a_multi_model_container_keeps_every_promise_of_the_contract(image: str, tmp_path: Path) -> None:
    platform = ArchiveFolder(tmp_path / "archives")
    platform.write_flat("flat")
    platform.write_nested(
        "nested",
        {
            "first": multiplying_model(2),
            "second": multiplying_model(3),
            "both": chain_config("first", "second"),
        },
    )
    make_readable(tmp_path)
    flags = ("-e", "SAGEMAKER_MULTI_MODEL=true", "-v", f"{platform.home}:{INSIDE}:ro", "--shm-size", "256m")
    with running_container(image, None, *flags) as box:
        promises = promises_by_state(
            tmp_path, box.url, "--mode", "mme", "--model-dir", f"{platform.home}:{INSIDE}"
        )
    assert set(promises) <= {"has", "not asked"}, promises
    assert len(promises["has"]) > 5
