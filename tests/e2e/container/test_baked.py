"""Images with the models inside need no mount, no model data and no network."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.containers import PYTHON, make_image, podman


@pytest.mark.exhaustive
def test_an_archive_readable_by_its_owner_alone_is_served_without_a_network(team_image: str) -> None:
    """Its clients, one of which loads a tokenizer of ``transformers``, and their samples are inside."""
    flags = ("--rm", "--network", "none", "-e", "HF_HUB_OFFLINE=1")
    report = podman("run", *flags, team_image, "test", timeout=120)
    assert ["tokens", "equal"] in [line.split()[:2] for line in report.splitlines()]
    user = "import os; print(os.getuid())"
    assert podman("run", *flags, "--entrypoint", PYTHON, team_image, "-c", user) == "1000"


@pytest.mark.parametrize("models", ["missing", "empty", "missing.tar.gz"])
def test_missing_models_fail_before_the_build(tmp_path: Path, models: str) -> None:
    (tmp_path / "empty").mkdir()
    done = make_image("IMAGE=localhost/trireme-test:none", f"MODELS={tmp_path / models}")
    assert done.returncode != 0 and "STEP" not in done.stdout


def test_the_demo_is_prepared_first_and_its_repository_goes_inside(demo: Path) -> None:
    commands = make_image("DRY_RUN=yes", "MODELS=demo").stdout
    assert commands.index("sm prepare") < commands.index("--target with-models")
    assert f"models={demo} " in commands
