"""``sm logs``: show a log, filtered."""

from __future__ import annotations

import argparse
import os
import sys

from sm.commands import local_boxes
from sm.commands.progress import Progress
from sm.errors import CommandError
from sm.settings import Settings
from trireme_tools.logs import local_logs, logs_arguments


def show_logs(options: argparse.Namespace) -> int:
    """Show an endpoint's log, or with ``--local`` that of a box here; 1 if no line is shown."""
    if options.local:
        return _show_local(options)
    if not options.name:
        raise CommandError("name the endpoint, or read the log of a box on this machine with --local.")
    filters = ("file", "model", "status", "code", "request_id", "slower", "since", "json")
    if given := [name for name in filters if getattr(options, name)]:
        raise CommandError(
            f"--{given[0].replace('_', '-')} works with --local; of an endpoint's log: "
            f"'sm logs {options.name} -n 1000 | sm logs --local --file - …'."
        )
    # boto3 is imported for an endpoint only.
    from trireme_tools.deploy import deploy_commands

    options.lines = min(options.lines or 100, 10_000)
    return deploy_commands.show_logs(options)


def _show_local(options: argparse.Namespace) -> int:
    if options.name:
        raise CommandError("--local shows the log of a box on this machine, which has no name.")
    criteria = local_logs.Filter(
        options.model or "",
        options.status or "",
        options.code or "",
        options.request_id or "",
        options.slower,
        options.since,
    )
    if options.file == "-":
        lines, source = iter(sys.stdin), "standard input"
    else:
        file = logs_arguments.log_file(options.file) if options.file else None
        file = file or local_logs.find(Settings.read(os.environ))
        lines, source = local_logs.read(file, options.follow), str(file)
        boxes = local_boxes.running()
        found = next((box for box in boxes if box.writes(file)), None)
        Progress(sys.stderr).say(f"the log is {source}{local_boxes.name_others(found, boxes, '--file')}")
    last = options.lines
    if last is None and criteria.is_empty and not options.follow:
        last = local_logs.DEFAULT_LINES
    if options.follow:
        last = None
    results = Progress(sys.stdout)
    if local_logs.show(lines, criteria, results.say, last=last, raw=options.json):
        return 0
    Progress(sys.stderr).say(f"no line in {source} matches")
    return 1
