"""Arguments of ``sm package``, in a module of their own so that the command line does not import the
packing.
"""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("repository", type=Path, metavar="REPO", help="Triton's model repository")
    command.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="PATH",
        help="the archive (model.tar.gz); with --mme the folder of the archives (archives)",
    )
    command.add_argument(
        "--mme", action="store_true", help="write one archive per model, for multi-model mode"
    )
    command.add_argument(
        "--clients",
        action="append",
        type=Path,
        default=[],
        metavar="FOLDER",
        help="pack the clients of this folder as code/NAME beside the models; repeatable",
    )
    command.add_argument(
        "--no-client-check",
        action="store_false",
        dest="client_check",
        help="pack clients without loading them, such as those that need packages of another machine",
    )
    command.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out files and folders with this name (hf_cache, *.ckpt) or path (resnet/1/cache)",
    )
    command.add_argument(
        "--copies", type=int, default=0, metavar="N", help="with --mme: write N renamed copies of each model"
    )
    command.add_argument(
        "--copies-from", type=int, default=1, metavar="K", help="the first copy's number (1)"
    )
    command.add_argument(
        "--copy-name",
        default="{model}-{number}",
        metavar="NAME",
        help="the name of each copy ({model}-{number})",
    )
