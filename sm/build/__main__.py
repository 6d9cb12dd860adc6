"""``python -m sm.build [MODEL...]``: what ``sm prepare`` does."""

import os
import sys

from sm.build.prepare import prepare
from sm.errors import StartError
from sm.settings import Settings

if __name__ == "__main__":
    try:
        prepare(Settings.read(os.environ), sys.argv[1:] or None)
    except StartError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        sys.exit(130)
