"""What check-client takes, and how it shows what it found."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from sm.settings import Settings


def options(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("name", metavar="NAME", help="the client: the name of its folder")
    command.add_argument("--url", help="a box that serves it; else its models get a Triton of their own")
    command.add_argument("--json", action="store_true", help="for programs")


def run(asked: argparse.Namespace) -> int:
    """Print each finding as it is there; 1 if a promise is not kept."""
    from sm.tools.check.check_report import Finding, chart
    from sm.tools.check.discovery import find
    from sm.tools.check.examination import Examination

    def note(finding: Finding) -> None:
        if not asked.json:
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()

    settings = Settings.read(os.environ)
    found = find(asked.name, settings)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Triton is stopped too
    try:
        report = Examination(found, settings, note).run(asked.url)
    finally:
        signal.signal(signal.SIGTERM, before)
    if asked.json:
        sys.stdout.write(f"{json.dumps(report.as_json(), indent=2)}\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in ("", *chart(report.stages), report.verdict()))
    return int(not report.passed)
