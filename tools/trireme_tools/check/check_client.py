"""Arguments of check-client, and the display of its findings."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys

from sm.commands import selftest
from sm.errors import CommandError
from sm.settings import Settings


def add_arguments(command: argparse.ArgumentParser) -> None:
    """Add its options."""
    command.add_argument("name", nargs="?", metavar="NAME", help="the client's name, which is its folder's")
    command.add_argument(
        "--all",
        action="store_true",
        help="compare the golden answers of all clients that a box serves, no more",
    )
    command.add_argument(
        "--url",
        help="a running box that serves the client; without it a Triton is started, or with --all a box",
    )
    command.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(options: argparse.Namespace) -> int:
    """Print each finding when it is known; return 1 if a promise is broken."""
    if options.all == bool(options.name) or (options.all and options.json):
        raise CommandError("name one client, or compare the answers of all with --all (which has no --json).")
    if options.all:
        return selftest.run(options)
    from trireme_tools.check.check_report import Finding, chart
    from trireme_tools.check.discovery import find
    from trireme_tools.check.examination import Examination

    def note(finding: Finding) -> None:
        if not options.json:
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()

    settings = Settings.read(os.environ)
    source = find(options.name, settings)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that Triton is stopped too
    try:
        report = Examination(source, settings, note).run(options.url)
    finally:
        signal.signal(signal.SIGTERM, before)
    if options.json:
        sys.stdout.write(f"{json.dumps(report.as_json(), indent=2)}\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in ("", *chart(report.stages), report.verdict()))
    return int(not report.passed)
