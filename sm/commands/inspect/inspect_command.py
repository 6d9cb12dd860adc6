"""``sm inspect``: print what is in a repository. The exit status is 1 if a start would meet a problem."""

from __future__ import annotations

import argparse
import json
import sys

from sm.commands.inspect import client_loading, inspection_report, mermaid
from sm.repository import problems


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
