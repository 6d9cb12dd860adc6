"""``sm clean``: show what the cache holds, and free it."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools.cache import Cache

#: The purposes of the parts; others are shown by their names alone.
PARTS = {
    "downloads": "packages as fetched: set-up fetches them again",
    "models": "converted models: set-up converts them again",
    "pictures": "a picture of the demo",
    "repository": "model repositories of make serve: set-up assembles them again",
    "built": "models of sm build-model: build them again",
    "sources": "models that boxes fetched at their start: the next start fetches them again",
    "engines": "TensorRT plans built at start",
    "environments": "environments of Python models",
    "bench": "environments of the benchmark's contestants",
    "scratch": "left by a set-up that was interrupted",
}
LOCK = "lock"


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "parts", nargs="*", metavar="PART", help="remove these parts (default: show all, remove nothing)"
    )
    command.add_argument("--all", action="store_true", help="remove everything")


def run(options: argparse.Namespace) -> int:
    """Show the parts, or remove those that are named."""
    cache = Cache(Settings.read(os.environ).cache)
    sizes = measure(cache.root)
    if not sizes:
        sys.stdout.write(f"{cache.root} is empty\n")
        return 0
    chosen = list(sizes) if options.all else options.parts
    unknown = [name for name in chosen if name not in sizes]
    if unknown:
        raise CommandError(f"{cache.root} has no {', '.join(unknown)}; it has {', '.join(sizes)}.")
    if not chosen:
        sys.stdout.writelines(f"{line}\n" for line in table(cache.root, sizes))
        return 0
    before = total(cache.root)
    # The lock: a set-up that runs has its files in use.
    with cache.locked(lambda line: print(line, file=sys.stderr)):  # noqa: T201
        for name in chosen:
            remove(cache.root / name)
    freed = before - total(cache.root)
    sys.stdout.write(f"removed {', '.join(chosen)}: {freed / 1e6:,.1f} MB are free again in {cache.root}\n")
    return 0


def table(root: Path, sizes: dict[str, int]) -> Iterator[str]:
    """Yield a line for each part, and the total, which counts a file once that two parts have."""
    width = max(map(len, sizes))
    yield f"{root}:"
    for name, size in sizes.items():
        yield f"  {name:<{width}}  {size / 1e6:>10,.1f} MB  {PARTS.get(name, '')}".rstrip()
    yield f"  {'in all':<{width}}  {total(root) / 1e6:>10,.1f} MB  a file that two parts have counts once"
    yield f"free it: sm clean --all, or name parts: sm clean {next(iter(sizes))}"


def measure(root: Path) -> dict[str, int]:
    """Return the bytes of each part on disk."""
    try:
        names = sorted(path.name for path in root.iterdir() if path.name != LOCK)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except OSError as error:
        raise CommandError(f"the cache {root} cannot be read: {error.strerror}.") from None
    return {name: total(root / name) for name in names}


def total(path: Path) -> int:
    """Return the bytes on disk of a file, or of all files in a folder; a file with two names counts once."""
    sizes: dict[tuple[int, int], int] = {}
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    for file in [path] if path.is_file() else files:
        try:
            status = file.lstat()
        except OSError:  # another process removed it meanwhile
            continue
        sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values())


def remove(path: Path) -> None:
    """Remove a part. What cannot be removed is named."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except FileNotFoundError:  # scratch goes with the lock
        pass
    except OSError as error:
        raise CommandError(f"{error.filename or path} cannot be removed: {error.strerror}.") from None
