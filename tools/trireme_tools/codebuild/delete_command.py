"""``sm delete``: an endpoint, or with ``--build`` what ``./build_and_push.sh --codebuild`` has made."""

from __future__ import annotations

import argparse
import sys

from trireme_tools import aws
from trireme_tools.codebuild.project import Names, Project
from trireme_tools.deploy import deletion, deploy_arguments, deploy_commands, project_file
from trireme_tools.deploy.account import Account
from trireme_tools.deploy.upload import default_bucket
from trireme_tools.progress import Progress

#: The image's repository if none is named, as in build_and_push.sh.
REPOSITORY = "trireme"


def run(options: argparse.Namespace) -> int:
    if not options.build:
        return deploy_commands.delete(options)
    repository = options.name or REPOSITORY
    options.name = ""  # a project's endpoint is not what is deleted
    project_file.complete(options, deploy_arguments.project_options())
    session = aws.session(options.region, options.profile)
    account = Account(session, Progress(sys.stderr), Progress(sys.stdout))
    names = Names(repository, account.number, [account.region], default_bucket(account))
    deletion.remove_all(account, repository, Project(account, names).resources(), options.yes)
    account.progress.say(
        f"removed. The images stay, and the log: aws logs delete-log-group --log-group-name {names.log_group}"
    )
    return 0
