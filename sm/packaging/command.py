"""``sm package``: a model repository becomes what is put on S3."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sm.build.progress import Progress
from sm.errors import StartError
from sm.inspection import models, problems, report
from sm.packaging import archive, shipments
from sm.packaging.shipments import CODE, Shipment


def run(options: argparse.Namespace) -> int:
    """Inspect, pack, and say what became how large."""
    if options.copies < 0 or (options.copies and not options.mme):
        raise StartError("--copies goes with --mme, and is a number from 1.")
    progress, results = Progress(sys.stderr), Progress(sys.stdout)
    inspect(options.repository, progress)
    if not options.mme:
        place = options.out or Path("model.tar.gz")
        pack(shipments.whole(options.repository, place), place, progress, results)
        return 0
    if options.copies and (options.repository / CODE).is_dir():
        progress.say("the copies have no client: it would call the model by the name it had")
    for shipment in shipments.apart(options.repository, options.copies):
        place = (options.out or Path("archives")) / f"{shipment.name}.tar.gz"
        pack(shipment, place, progress, results)
    return 0


def inspect(repository: Path, progress: Progress) -> None:
    """Show the repository; :class:`StartError` lists what would stop a start there."""
    found = report.report(repository)
    for line in report.table(found["models"]) if found["models"] else ():
        progress.say(line)
    # A plan may be for a GPU that this machine does not have.
    elsewhere = problems.plans(models.read(repository)) if repository.is_dir() else []
    for sentence in elsewhere:
        progress.say(f"on this machine: {sentence}")
    wrong = [sentence for sentence in found["problems"] if sentence not in elsewhere]
    if wrong:
        raise StartError("nothing is packed:\n" + "\n".join(wrong))


def pack(shipment: Shipment, place: Path, progress: Progress, results: Progress) -> None:
    digest = archive.write(place, shipment.entries, progress)
    sizes = shipment.sizes()
    width = max(map(len, sizes), default=0)
    for name, size in sizes.items():
        results.say(f"  {name:<{width}}  {size / 1e6:10.1f} MB")
    results.say(f"{place}  {place.stat().st_size / 1e6:.1f} MB  sha256 {digest}")
