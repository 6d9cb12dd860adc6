"""The options of build-model: each is documented, and the command line wins over a model's own options."""

from __future__ import annotations

import argparse
import re

import pytest

from sm import cli
from sm.build import build_arguments
from sm.build.build_command import wanted
from sm.errors import CommandError
from sm.settings import HERE


def test_every_option_is_documented() -> None:
    names = ("engines", "cpu-engines", "gpu-engines", "less-to-send")
    page = "".join((HERE / "docs" / "run" / f"{name}.md").read_text() for name in names)
    command = argparse.ArgumentParser(add_help=False)
    build_arguments.add_arguments(command)
    options = set(re.findall(r"--[a-z][\w-]+", command.format_help()))
    assert "--precision" in options
    assert [option for option in sorted(options) if option not in page] == []


def test_the_command_line_wins_over_a_models_own_options() -> None:
    model_options = (HERE / "model" / "bert_base" / "tensorrt.options").read_text().split()
    arguments = cli.parser(["build-model"]).parse_args(
        ["build-model", "bert_base", *model_options, "--precision", "fp32"]
    )
    assert dict(arguments.shapes) == {"input_ids": ((1, 128), (16, 128), (128, 128))}
    assert arguments.precision == "fp32"


@pytest.mark.parametrize(
    ("precision", "tolerance", "named"),
    [("fp16", 0.01, "--precision fp16"), ("int8", 0.01, "--calibration"), ("auto", 1.5, "--tolerance 1.5")],
)
def test_what_the_cpu_target_cannot_do_is_refused_by_its_option(
    precision: str, tolerance: float, named: str
) -> None:
    with pytest.raises(CommandError, match=named):
        wanted("auto", precision, tolerance)
