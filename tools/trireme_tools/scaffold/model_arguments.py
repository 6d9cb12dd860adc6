"""Arguments of new-model and eject."""

from __future__ import annotations

import argparse
from pathlib import Path

from sm.client.tasks import TASKS


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of new-model."""
    add_eject_arguments(command)
    command.add_argument(
        "--from",
        dest="source",
        required=True,
        metavar="FILE.onnx|FOLDER|hf://OWNER/NAME",
        help="an ONNX file, or a folder or repository of Hugging Face's form",
    )
    command.add_argument("--task", choices=TASKS, help="what the model does (default: its config.json)")
    command.add_argument("--labels", type=Path, metavar="FILE", help="one label a line, in the model's order")
    command.add_argument(
        "--preprocess", type=Path, metavar="FILE", help="how a picture becomes the input, as preprocess.json"
    )


def add_eject_arguments(command: argparse.ArgumentParser) -> None:
    """Add the options of eject."""
    command.add_argument("name", metavar="NAME", help="the modelname: small letters, digits and _")
    command.add_argument(
        "--into", type=Path, default=Path(), metavar="FOLDER", help="the folder of model/NAME (default: here)"
    )


def run(options: argparse.Namespace) -> int:
    """Write model/NAME."""
    from trireme_tools.scaffold import new_model

    return new_model.run(options)


def eject(options: argparse.Namespace) -> int:
    """Write clients/NAME."""
    from trireme_tools.scaffold import new_model

    return new_model.eject(options)
