"""Install the rest of the packages while the models' weights are fetched and converted: set_up.py starts it.

A conversion needs NumPy and onnx alone, which are there by now, with rich for the bars.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from sm.errors import CommandError
from sm.settings import HERE, Settings
from trireme_tools.cache import Cache
from trireme_tools.prepare import demo, recipes, set_up
from trireme_tools.prepare.install_packages import InstallError
from trireme_tools.progress import Progress


def main(arguments: Sequence[str]) -> int:
    """Do both; return the exit status."""
    progress = Progress(sys.stderr)
    try:
        settings = Settings.read(os.environ)
        folders = [*recipes.find(HERE / "model")]
        if "--examples" in arguments:
            folders += recipes.find(HERE / "examples")
        cache = Cache(settings.cache)
        for line in demo.table(cache, demo.missing_sources(cache, folders)):
            progress.say(line)

        def install() -> None:
            with progress.step(set_up.INSTALLING):
                set_up.install_packages()

        with cache.locked(progress.say):
            demo.DemoPreparation(cache, HERE / "model", progress).build_beside(folders, install)
    except CommandError as error:
        progress.say(f"error: {error}")
        return 1
    except InstallError as error:
        progress.say(set_up.describe(error))
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
