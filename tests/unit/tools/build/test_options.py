"""The options of build-model: each is documented, and the command line wins over a model's own options."""

from __future__ import annotations

import argparse

from sm import cli
from sm.settings import HERE
from sm.tools.build import build_arguments


def option_names() -> list[str]:
    command = argparse.ArgumentParser(add_help=False)
    build_arguments.add_arguments(command)
    return [name for action in command._actions for name in action.option_strings]


def test_every_option_is_documented() -> None:
    page = (HERE / "docs" / "run" / "engines.md").read_text()
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
