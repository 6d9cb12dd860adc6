"""What ``serve --demo`` and ``serve --examples`` serve, and the commands that they print."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from sm.cache import Cache
from sm.settings import HERE, Settings

SENTENCE = '{"modelname":"bert_base","payload":{"text":"The world has [MASK] people."}}'


def repository(settings: Settings, examples: bool = False) -> Path:
    """Triton's models for the CPU, as ``sm prepare`` leaves them."""
    return Cache(settings.cache).repositories / ("examples" if examples else "cpu")


def lines(settings: Settings, examples: bool = False) -> str:
    """Commands that work as printed, from any folder: three, and those of the examples."""
    curl, address = _curl(settings), f"{_base(settings)}/invocations"
    cat = HERE / "clients" / "resnet" / "sample" / "cat.png"
    street = Cache(settings.cache).street_picture
    return "\n".join(
        [
            "",
            "The box is ready. Try:",
            f"{curl} {_with_body(cat, 'image/png')} '{address}?modelname=resnet'",
            f"{curl} {_with_body(street, 'image/jpeg')} '{address}?modelname=yolov5'",
            f"{curl} --data '{SENTENCE}' -H 'Content-Type: application/json' {address}",
            *(_of_examples(settings) if examples else ()),
            "",
        ]
    )


def _base(settings: Settings) -> str:
    """Where the box is called."""
    return f"https://localhost:{settings.tls_port}" if settings.tls else f"localhost:{settings.port}"


def _curl(settings: Settings) -> str:
    """How: trusting the certificate, with a key that only its caller has."""
    trust = f" --cacert {shlex.quote(str(settings.tls_certificate))}" if settings.tls else ""
    key = ' -H "x-api-key: $KEY"' if settings.api_keys_file else ""
    return f"curl -s{trust}{key}"


def _with_body(file: Path, content_type: str) -> str:
    return f"--data-binary {shlex.quote(f'@{file}')} -H 'Content-Type: {content_type}'"


def _of_examples(settings: Settings) -> Iterator[str]:
    for file in sorted((HERE / "examples").glob("*/curl.txt")):
        text = file.read_text(encoding="utf-8").strip()
        folder = shlex.quote(str(file.parent))
        text = text.replace("{address}", _base(settings)).replace("{folder}", folder)
        yield text.replace("curl -s", _curl(settings), 1)
