"""``sm inspect``: print what is in a repository. The exit status is 1 if a start would meet a problem."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from sm.commands.inspect import client_loading, inspection_report, mermaid
from sm.repository import problems


def add_arguments(command: argparse.ArgumentParser) -> None:
    command.add_argument("repository", type=Path, metavar="REPO", help="Triton's model repository")
    command.add_argument(
        "--no-client-check",
        action="store_false",
        dest="client_check",
        help="do not load the clients of code/, such as those of a repository that you do not trust",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON, for programs")
    form.add_argument(
        "--graph",
        nargs="?",
        const="-",
        metavar="FILE.mmd",
        help="write the ensembles as a Mermaid flowchart (to standard output)",
    )


def run(options: argparse.Namespace) -> int:
    """Show what a model repository holds, and every problem that a start would meet."""
    problem_list = problems.find_all(options.repository)
    if options.client_check:
        problem_list += client_loading.find_problems(options.repository)
    report = inspection_report.report(options.repository, problem_list)
    if options.json:
        sys.stdout.write(json.dumps(report, indent=2) + "\n")
        return int(bool(report["problems"]))
    if options.graph:
        mermaid.save(options.repository, options.graph)
    elif report["models"]:
        sys.stdout.writelines(f"{line}\n" for line in inspection_report.table(report["models"]))
    for sentence in report["warnings"]:
        sys.stderr.write(f"warning: {sentence}\n")
    for sentence in report["problems"]:
        sys.stderr.write(f"problem: {sentence}\n")
    return int(bool(report["problems"]))
