"""``python -m tests.support.helm_runner CHART VALUES``: lint and render a chart with Helm's own library.

Prints JSON with the linter's output and the rendered files. Runs in an interpreter that has the package for it.
"""

from __future__ import annotations

import json
import sys


def main(chart: str, values: str) -> None:
    import helm_python as helm  # type: ignore[import-not-found]

    with helm.Chart.load(chart) as loaded:
        given = json.loads(values)
        loaded.validate_schema(given)
        sys.stdout.write(
            json.dumps(
                {"lint": helm.lint(chart), "files": loaded.render(given, name="cats", namespace="prod")}
            )
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
