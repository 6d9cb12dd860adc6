"""``sm tune`` of the three demo models on this machine, as the page of the documentation shows it.

    .venv/bin/python -m bench.tuning [MINUTES]

MINUTES (5) for each model. Writes bench/reports/tuning.md and a plot for each beside bench/results.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from sm.settings import HERE

#: A bound that one request alone keeps with room on two cores.
BOUNDS = {"bert_base": "200ms", "resnet": "800ms", "yolov5": "1500ms"}
REPORT = HERE / "bench" / "reports" / "tuning.md"
PLOTS = HERE / "bench" / "results"
HEAD = """# Tuning of the demo's models

`.venv/bin/python -m bench.tuning {minutes:g}`: [`sm tune`](../../docs/run/tuning.md) of each, in turn, on one
machine, so many minutes each.
"""


def main(minutes: float) -> int:
    parts = [HEAD.format(minutes=minutes)]
    for model, bound in BOUNDS.items():
        with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
            command = [sys.executable, "-m", "sm.cli", "tune", model, "--p99", bound]
            process = subprocess.run(
                [*command, "--minutes", str(minutes), "--report", folder],
                check=False,
                stdout=subprocess.DEVNULL,
            )
            report = Path(folder) / "report.md"
            if not report.exists():
                return process.returncode or 1
            plot = PLOTS / f"tuning-{model}.svg"
            if (Path(folder) / "plot.svg").exists():
                shutil.copyfile(Path(folder) / "plot.svg", plot)
            text = report.read_text().replace("(plot.svg)", f"(../results/{plot.name})")
            # One page, with a section for each model.
            parts.append(text.replace("# Tuning of", "## ", 1).replace("##  ", "## ", 1))
    REPORT.write_text("\n".join(parts))
    return 0


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]) if len(sys.argv) > 1 else 5.0))
