"""``sm invoke``, whose endpoint may be that of ``trireme.toml``. Importing it loads no boto3."""

from __future__ import annotations

import argparse

from trireme_tools.deploy import deploy_arguments, project_file
from trireme_tools.invoke import invoke_command


def run(options: argparse.Namespace) -> int:
    project_file.complete(options, deploy_arguments.project_options(), "target")
    return invoke_command.run(options)
