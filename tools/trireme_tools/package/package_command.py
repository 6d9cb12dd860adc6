"""``sm package``: pack a model repository for S3."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from sm.commands import client_loading, inspect_command
from sm.errors import CommandError
from sm.repository import problems
from sm.repository.problems import Problem
from trireme_tools.package import archive_plan, archive_writer
from trireme_tools.package.archive_plan import CODE, ArchivePlan, Copies
from trireme_tools.package.contents import ExcludedFiles, unpackable_links
from trireme_tools.progress import Progress


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


def run(options: argparse.Namespace) -> int:
    """Inspect and pack; print sizes, and what was left out."""
    if options.copies < 0 or (options.copies and not options.mme):
        raise CommandError("--copies needs --mme and a number from 1.")
    copies = Copies(options.copies, options.copies_from, options.copy_name) if options.copies else None
    progress, results = Progress(sys.stderr), Progress(sys.stdout)
    exclusion = ExcludedFiles(options.repository, options.exclude)
    client_problems = (
        client_loading.find_problems(options.repository, options.clients, mme=options.mme)
        if options.client_check
        else []
    )
    inspect(options.repository, progress, exclusion, client_problems)
    if options.mme:
        if copies and (options.repository / CODE).is_dir():
            progress.say("the copies have no client: it would call the model by the name it had")
        for plan in archive_plan.plan_each(options.repository, exclusion, copies, options.clients):
            place = (options.out or Path("archives")) / f"{plan.name}.tar.gz"
            pack(plan, place, progress, results)
    else:
        place = options.out or Path("model.tar.gz")
        plan = archive_plan.plan_one(options.repository, place, exclusion, options.clients)
        pack(plan, place, progress, results)
    print_excluded(exclusion, options.repository, progress, results)
    return 0


def inspect(
    repository: Path,
    progress: Progress,
    exclusion: ExcludedFiles | None = None,
    client_problems: Sequence[Problem] = (),
) -> None:
    """Print the problems; :class:`CommandError` lists those that would stop a start."""
    links = map(Problem, unpackable_links(repository))
    problem_list = [*problems.find(repository), *links, *client_problems]
    left_out = list(exclusion.excluded_sizes()) if exclusion and repository.is_dir() else []
    names = {path.name for path in left_out if path.parent == repository}
    rows = [
        row for row in inspect_command.report(repository, problem_list)["models"] if row["model"] not in names
    ]
    for line in inspect_command.table(rows) if rows else ():
        progress.say(line)
    # A sentence begins with the path that it is about.
    about = tuple(
        f"{place}{end}" for path in left_out for place in (path, path.absolute()) for end in (" ", "/", ":")
    )
    problem_list = [problem for problem in problem_list if not problem.sentence.startswith(about)]
    for problem in problem_list:
        # A model may be for a GPU or a backend that this machine does not have.
        if problem.is_local:
            progress.say(f"on this machine: {problem}")
        elif not problem.is_certain:
            progress.say(f"warning: {problem}")
    wrong = [problem.sentence for problem in problem_list if problem.is_certain and not problem.is_local]
    if wrong:
        hint = (
            "\n'sm package --no-client-check' packs clients that load elsewhere." if client_problems else ""
        )
        raise CommandError("nothing is packed:\n" + "\n".join(wrong) + hint)
    if exclusion:
        exclusion.check()


def print_excluded(exclusion: ExcludedFiles, repository: Path, progress: Progress, results: Progress) -> None:
    for path, size in exclusion.excluded_sizes().items():
        results.say(f"left out {path.relative_to(repository)}  {size / 1e6:.1f} MB")
    for pattern in exclusion.unused():
        progress.say(f"--exclude {pattern}: nothing in {repository} has this name or path")


def pack(plan: ArchivePlan, place: Path, progress: Progress, results: Progress) -> None:
    digest = archive_writer.write(place, plan.entries, progress)
    sizes = plan.sizes()
    width = max(map(len, sizes), default=0)
    for name, size in sizes.items():
        results.say(f"  {name:<{width}}  {size / 1e6:10.1f} MB")
    results.say(f"{place}  {place.stat().st_size / 1e6:.1f} MB  sha256 {digest}")
