"""The commands that a dry run prints."""

from __future__ import annotations

from tests.support.push_checkout import Checkout


def commands(checkout: Checkout, *options: str, **env: str) -> list[str]:
    done = checkout.push("--dry-run", *options, **{"PATH": "/usr/bin:/bin", "DOCKER": "docker", **env})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()
