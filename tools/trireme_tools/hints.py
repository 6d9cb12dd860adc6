"""Tell a person, when the box is ready, a command for each client: and keep its log."""

from __future__ import annotations

import filecmp
import json
import mimetypes
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sm.repository import models
from sm.repository.models import CODE
from sm.run_state import Box, read_json
from sm.server.logs import Desk
from sm.settings import HERE, Settings
from trireme_tools.log_file import open_log

#: Characters of a sample that is shown inside its command; a longer one is read from its file.
MAX_INLINE_CHARACTERS = 300
#: The sample that every client may have.
PAYLOAD = "payload.json"


def ready_message(settings: Settings, box: Box) -> str:
    """Return the lines for a terminal. The commands work from any folder of this machine."""
    if box.catalog:
        return f"\nThe box is ready. A request loads the model it names; see {settings.origin}/models.\n"
    if box.multi_model:
        return f"\nThe box is ready. Load a model with POST {settings.origin}/models.\n"
    clients, samples = box.serving_clients(), read_json(box.samples_file, {})
    lines = ["", f"The box is ready. The page to try it: {settings.origin}/"]
    lines.append(f"What it does now: {settings.origin}/dashboard")
    for client in sorted(clients, key=lambda row: str(row["name"])):
        lines += ["", f"# {client['name']}: {client['description'] or client['client']}"]
        lines.append(sample_command(settings, client, samples.get(client["name"], {})))
    called_models = {model for client in clients for model in client["models"]}
    without_client = [name for name in models.names(box.repository) if name not in called_models]
    if without_client:
        lines += [
            "",
            f"# No client calls {', '.join(without_client)}: the page shows how, and {settings.origin}/docs",
        ]
    return "\n".join([*lines, "", ""])


def sample_command(settings: Settings, client: Mapping[str, Any], samples: Mapping[str, str]) -> str:
    """Return a command that sends one of the client's samples to the box."""
    example = HERE / "examples" / str(client["name"])
    if (example / "curl.txt").is_file() and _is_of_example(example, samples):
        return _example_command(settings, example / "curl.txt")
    curl, address = _curl(settings), f"{_base(settings)}/invocations"
    for name, file in samples.items():
        media_type = mimetypes.guess_type(name)[0]
        if name != PAYLOAD and media_type in client["content_types"]:
            query = shlex.quote(f"{address}?modelname={client['name']}")
            return f"{curl} --data-binary {shlex.quote(f'@{file}')} -H 'Content-Type: {media_type}' {query}"
    if PAYLOAD not in samples:
        return f"# it has no sample; what it takes: {settings.origin}/docs"
    file, prefix = samples[PAYLOAD], f'{{"modelname":"{client["name"]}","payload":'
    payload = read_json(Path(file), None)
    inline = f"{prefix}{json.dumps(payload, ensure_ascii=False)}}}"
    target = f"-H 'Content-Type: application/json' {address}"
    if len(inline) <= MAX_INLINE_CHARACTERS:
        return f"{curl} --data {shlex.quote(inline)} {target}"
    body = f"{{ printf %s {shlex.quote(prefix)}; cat {shlex.quote(file)}; printf '}}'; }}"
    return f"{body} | {curl} --data-binary @- {target}"


def _base(settings: Settings) -> str:
    """Return the box's address as short as curl takes it."""
    return settings.origin.removeprefix("http://")


def _curl(settings: Settings) -> str:
    """Return the curl command with its options: the certificate to trust, and where the key comes from."""
    certificate = f" --cacert {shlex.quote(str(settings.tls_certificate))}" if settings.tls else ""
    key = ' -H "x-api-key: $KEY"' if settings.api_keys_file else ""
    return f"curl -s{certificate}{key}"


def _is_of_example(example: Path, samples: Mapping[str, str]) -> bool:
    """True if a sample is the example's: a repository has a copy, and a team's client may have its name."""
    folder = example / "repository" / CODE / example.name / "sample"
    own = ((folder / name, Path(file)) for name, file in samples.items())
    return any(first.is_file() and filecmp.cmp(first, second, shallow=False) for first, second in own)


def _example_command(settings: Settings, file: Path) -> str:
    text = file.read_text("utf-8-sig").strip()
    text = text.replace("{address}", _base(settings)).replace("{folder}", shlex.quote(str(file.parent)))
    return text.replace("curl -s", _curl(settings), 1)


def watch_clients(*arguments: Any) -> None:
    """Load the clients of a worker again when their files change; see ``Reloader``."""
    from trireme_tools.client_reload import Reloader  # with NumPy, which the supervisor does not load

    Reloader(*arguments).watch()


#: The row of the door ``sm.desk``.
DESK = Desk(open_log, ready_message, watch_clients)
