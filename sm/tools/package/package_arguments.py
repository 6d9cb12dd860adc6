"""What ``sm package`` takes. Apart, as each command loads this and no other the packing itself."""

from __future__ import annotations

import argparse
from pathlib import Path


def take(command: argparse.ArgumentParser) -> None:
    command.add_argument("repository", type=Path, metavar="REPO", help="Triton's model repository")
    command.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="PATH",
        help="the archive (model.tar.gz); with --mme the folder of the archives (archives)",
    )
    command.add_argument("--mme", action="store_true", help="an archive for each model, for multi-model mode")
    command.add_argument(
        "--exclude",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out files and folders of this name (hf_cache, *.ckpt), or at this path (resnet/1/cache)",
    )
    command.add_argument(
        "--copies", type=int, default=0, metavar="N", help="with --mme: N renamed copies of each model"
    )
    command.add_argument(
        "--copies-from", type=int, default=1, metavar="K", help="the first copy's number (1)"
    )
    command.add_argument(
        "--copy-name",
        default="{model}-{number}",
        metavar="NAME",
        help="each copy's name ({model}-{number})",
    )
