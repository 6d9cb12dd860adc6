"""A stand-in for the Hugging Face hub: the few routes that list a repository and send its files.

It keeps no history: a repository has one commit, which is made of its files. As the real hub does, it sends large
files by a redirect to another host, which must not get the caller's token.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

#: Bytes from which a file is on the other host.
LARGE = 2**16


@dataclass
class Hub:
    """Serves the folders ``root/OWNER/NAME``.

    Attributes:
        sent: Bytes of files, by path.
        tokens: What callers of the hub, and of the other host, have sent as Authorization.
    """

    root: Path
    url: str = ""
    sent: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, set[str | None]] = field(default_factory=lambda: {"hub": set(), "other": set()})

    def commit(self, name: str) -> str:
        files = sorted(file for file in (self.root / name).rglob("*") if file.is_file())
        return hashlib.sha1(b"".join(file.read_bytes() for file in files)).hexdigest()

    def describe(self, name: str) -> dict[str, Any]:
        """Return what ``GET /api/models/NAME?blobs=true`` has of the files."""
        files = []
        for file in filter(Path.is_file, sorted((self.root / name).rglob("*"))):
            content = file.read_bytes()
            row: dict[str, Any] = {"rfilename": str(file.relative_to(self.root / name)), "size": len(content)}
            row["blobId"] = hashlib.sha1(content).hexdigest()
            if len(content) >= LARGE:
                digest = hashlib.sha256(content).hexdigest()
                row["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            files.append(row)
        return {"id": name, "modelId": name, "sha": self.commit(name), "siblings": files}


@contextmanager
def running_hub(root: Path) -> Iterator[Hub]:
    """Run the hub; ``HF_ENDPOINT`` must lead to its ``url``."""
    hub = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            host = "other" if path.startswith("/other/") else "hub"
            hub.tokens[host].add(self.headers["Authorization"])
            listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path)
            found = re.fullmatch(r"(?:/other)?/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path)
            named = listed or found
            name, revision = named.group(1, 2) if named else ("", None)
            if not (root / name).is_dir() or revision not in (None, "main", hub.commit(name)):
                self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            elif listed:
                self._answer(200, json.dumps(hub.describe(name)).encode())
            elif found:
                self._send_file(root / name / found[3], host)

        def _send_file(self, file: Path, host: str) -> None:
            content = file.read_bytes()
            if len(content) >= LARGE and host == "hub":
                # Another name of this machine, and so another host.
                other = f"http://localhost:{server.server_port}/other{self.path}"
                self._answer(302, b"", {"Location": other})
                return
            ranged = (
                re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"] or "") if host == "other" else None
            )
            if ranged is None:
                hub.sent[file.name] = hub.sent.get(file.name, 0) + len(content)
                self._answer(200, content)
                return
            start, end = int(ranged[1]), int(ranged[2]) + 1
            hub.sent[file.name] = hub.sent.get(file.name, 0) + end - start
            self._answer(
                206, content[start:end], {"Content-Range": f"bytes {start}-{end - 1}/{len(content)}"}
            )

        def _answer(self, status: int, body: bytes, headers: dict[str, str] = {}) -> None:  # noqa: B006
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the output of tests short."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield hub
        finally:
            server.shutdown()
