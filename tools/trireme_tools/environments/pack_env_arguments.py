"""Arguments of ``sm pack-env``, in a module of their own so that the command line does not import the
packing.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", metavar="NAME", help="the environment's name")
    source = command.add_mutually_exclusive_group(required=True)
    source.add_argument(
        "--requirements", type=Path, metavar="FILE", help="a pip requirements file; installed from wheels"
    )
    source.add_argument(
        "--conda", type=Path, metavar="ENV.yml", help="a conda environment file; needs conda-pack"
    )
    command.add_argument(
        "--python",
        type=version,
        metavar="3.12",
        help="the Python version (default: that of this machine's Triton)",
    )
    command.add_argument(
        "-o", "--out", type=Path, metavar="PATH", help="a folder, or a file that ends in .tar.gz (./NAME)"
    )


def version(text: str) -> str:
    if not re.fullmatch(r"3\.\d+", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a version such as 3.12")
    return text
