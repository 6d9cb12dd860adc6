"""The options of build-model: each is documented, and the command line wins over a model's own options."""

from __future__ import annotations

import argparse

import pytest

from sm import cli
from sm.build import build_arguments
from sm.build.build_command import wanted
from sm.errors import CommandError
from sm.settings import HERE


def option_names() -> list[str]:
    command = argparse.ArgumentParser(add_help=False)
    build_arguments.add_arguments(command)
    return [name for action in command._actions for name in action.option_strings]


def test_every_option_is_documented() -> None:
    names = ("engines", "cpu-engines", "gpu-engines", "less-to-send")
    page = "".join((HERE / "docs" / "run" / f"{name}.md").read_text() for name in names)
    assert "--precision" in option_names()
    for option in option_names():
        assert option in page, option


def test_the_command_line_wins_over_a_models_own_options() -> None:
    model_options = (HERE / "model" / "bert_base" / "tensorrt.options").read_text().split()
    arguments = cli.parser(["build-model"]).parse_args(
        ["build-model", "bert_base", *model_options, "--precision", "fp32"]
    )
    assert dict(arguments.shapes) == {"input_ids": ((1, 128), (16, 128), (128, 128))}
    assert arguments.precision == "fp32"


@pytest.mark.parametrize(
    ("precision", "tolerance", "reason"),
    [
        ("fp16", 0.01, "--precision fp16 is not for --target cpu"),
        ("int8", 0.01, "--precision int8 needs --calibration FOLDER"),
        ("auto", 1.5, "--tolerance 1.5"),
    ],
)
def test_what_the_cpu_target_cannot_do_is_refused(precision: str, tolerance: float, reason: str) -> None:
    with pytest.raises(CommandError, match=reason):
        wanted("auto", precision, tolerance)
