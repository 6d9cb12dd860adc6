"""Photographs: ``python -m bench.photos`` measures this box and its peers on what phones and screens send.

The pictures are made of the ``resnet`` client's coffee, enlarged, with the noise of a sensor, so that a file
has the size that a phone's has. Every draw starts each contestant afresh and sends all pictures in all forms.
Writes ``bench/reports/photos.md``.
"""

from __future__ import annotations

import argparse
import io
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image, ImageDraw

from bench import files, photo_report
from bench.__main__ import machine, progress
from bench.contestant import FORMS, REGIMES, Contestant, Regime
from bench.contestants import find
from bench.measuring import drive
from bench.running import free_port, running, wait_until_idle
from bench.samples import CLIENTS, Sample
from sm.errors import CommandError
from sm.settings import Settings

REPORT = Path(__file__).with_name("reports") / "photos.md"
MODEL, LABEL = "resnet", b"espresso"
CALLERS, WARM_S, WARM_REAL_S = 8, 1.0, 2.0
#: The noise of a sensor, in steps of brightness: 12 megapixels are 3 MB then.
NOISE, QUALITY, ORIENTATION_TAG = 6.0, 92, 0x0112
#: A contestant's name here, the service it is, and how it decodes: see :mod:`bench.photo_work`.
CONTESTANTS = {
    "trireme": ("trireme", ""),
    "fastapi, OpenCV": ("fastapi", "opencv"),
    "fastapi, Pillow": ("fastapi", "pillow"),
    "litserve, OpenCV": ("litserve", "opencv"),
    "bentoml, OpenCV": ("bentoml", "opencv"),
}


@dataclass(frozen=True)
class Photo:
    """A picture to be sent. ``expected``: what a right answer contains, if the model really looks at it."""

    name: str
    content: bytes
    content_type: str
    expected: bytes = LABEL


@dataclass(frozen=True)
class Measured:
    """One measurement; ``rate`` in answers and ``cost`` in seconds of processor time for each."""

    contestant: str
    regime: str
    photo: str
    form: str
    draw: int
    rate: float
    cost: float
    p50: float
    p99: float
    failed: int


def photos() -> list[Photo]:
    """Return the five pictures, the same on every machine."""
    return [
        Photo("12 MP, EXIF orientation 6", jpeg(4032, 3024, 6), "image/jpeg"),
        Photo("12 MP", jpeg(4032, 3024), "image/jpeg"),
        Photo("2 MP", jpeg(1632, 1224), "image/jpeg"),
        Photo("0.1 MP", jpeg(400, 300), "image/jpeg"),
        Photo("screenshot, PNG", screenshot(), "image/png", b'"'),
    ]


def jpeg(width: int, height: int, orientation: int = 1) -> bytes:
    """Return the sample of coffee as a camera of that size would store it."""
    picture = Image.open(CLIENTS / MODEL / "sample" / "coffee.jpg").convert("RGB").crop((33, 0, 566, 400))
    if orientation == 6:
        picture = picture.transpose(Image.Transpose.ROTATE_90)
    pixels = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noise = np.random.default_rng(12).normal(0, NOISE, (height, width, 1)).astype(np.int16)
    exif = Image.Exif()
    exif[ORIENTATION_TAG] = orientation
    stream = io.BytesIO()
    noisy = Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))
    noisy.save(stream, "JPEG", quality=QUALITY, **({"exif": exif} if orientation > 1 else {}))
    return stream.getvalue()


def screenshot() -> bytes:
    """Return 1,920 by 1,080 pixels with windows of text, and a picture among them."""
    screen = Image.new("RGB", (1920, 1080), (236, 240, 244))
    draw = ImageDraw.Draw(screen)
    for left, top, right, bottom in ((40, 60, 1180, 1020), (1220, 60, 1880, 520)):
        draw.rectangle((left, top, right, bottom), fill="white", outline=(160, 160, 160))
        for line in range(top + 20, bottom - 20, 18):
            draw.text(
                (left + 20, line), "the quick brown fox jumps over the lazy dog " * 2, fill=(40, 40, 40)
            )
    screen.paste(Image.open(CLIENTS / MODEL / "sample" / "coffee.jpg"), (1240, 560))
    stream = io.BytesIO()
    screen.save(stream, "PNG")
    return stream.getvalue()


def contestant(name: str, regime: Regime, folder: Path, shared: Path) -> Contestant:
    """Return the service, decoding as its row says; it sends the :class:`Photo` in its ``photo``."""
    service, style = CONTESTANTS[name]

    class Sender(find(service)):  # type: ignore[misc]
        photo: Photo

        def sample(self, model: str) -> Sample:  # noqa: ARG002
            return Sample(self.photo.content, self.photo.content_type, self.photo.expected)

        def environment(self) -> dict[str, str]:
            return {**super().environment(), "BENCH_PICTURES": style}

    return cast("Contestant", Sender(free_port(), regime, folder, shared))


def draw(sender: Any, name: str, number: int, seconds: float, chosen: Sequence[Photo]) -> Iterator[Measured]:
    """Measure every picture in every form, from one start of a contestant."""
    real = sender.regime == "real"
    with running(sender) as root:
        assert root is not None  # every contestant here is started
        for photo in chosen:
            sender.photo = replace(photo, expected=photo.expected if real else LABEL)
            for form in FORMS:
                if sender.request(MODEL, form) is None:
                    continue
                drive(sender, root, MODEL, form, CALLERS, WARM_REAL_S if real else WARM_S)
                wait_until_idle(root)
                load, use = drive(sender, root, MODEL, form, CALLERS, seconds)
                measured = Measured(
                    name,
                    sender.regime,
                    photo.name,
                    form,
                    number,
                    load.rate,
                    use.seconds / max(1, load.answers),
                    load.p50,
                    load.p99,
                    load.wrong + load.lost,
                )
                progress(
                    f"{measured.regime} {name}, {photo.name}, {form}: {measured.rate:.1f}/s, "
                    f"{1000 * measured.cost:.1f} ms of processor, {measured.failed} failed"
                )
                yield measured


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.photos", description=__doc__)
    names = list(CONTESTANTS)
    parser.add_argument("--contestants", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=["instant", "real"])
    parser.add_argument("--photos", nargs="+", type=int, metavar="N", help="which of the five, from 1 on")
    parser.add_argument("--seconds", type=float, default=4.0, help="each measurement")
    parser.add_argument("--draws", type=int, default=3, help="fresh starts of each contestant, interleaved")
    parser.add_argument("--out", type=Path, default=REPORT, help="the report")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Return 0, or 1 after a sentence that says why nothing could be measured."""
    options = parse(words)
    chosen = [
        photo for number, photo in enumerate(photos(), 1) if number in (options.photos or (1, 2, 3, 4, 5))
    ]
    about = {**machine(), "command": f"python -m bench.photos {' '.join(words)}".strip()}
    measurements: list[Measured] = []
    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as name:
        shared = Path(name) / "files"
        shared.mkdir()
        try:
            files.prepare(shared, Settings.read({}))
        except CommandError as error:
            print(error, file=sys.stderr)
            return 1
        for number in range(options.draws):
            for regime in options.regimes:
                for contestant_name in options.contestants:
                    with tempfile.TemporaryDirectory(prefix="trireme-bench-") as folder:
                        try:
                            sender = contestant(contestant_name, regime, Path(folder), shared)
                            measurements += draw(sender, contestant_name, number, options.seconds, chosen)
                        except CommandError as error:
                            progress(f"{contestant_name} was not measured: {error}")
    about["when ended"] = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    text = photo_report.write(
        options.out, about, chosen, [asdict(measurement) for measurement in measurements]
    )
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
