"""Run build_and_push.sh as a dry run, and return the commands that it prints."""

from __future__ import annotations

from tests.support.push_checkout import Checkout


def dry_run_commands(checkout: Checkout, *options: str, **env: str) -> list[str]:
    done = checkout.push("--dry-run", *options, **{"PATH": "/usr/bin:/bin", "DOCKER": "docker", **env})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
