"""A stand-in for the Hugging Face hub: the few routes that list a repository and send its files.

It keeps no history: a repository has one commit, which is made of its files. As the real hub does, it sends large
files by a redirect to another host, which must not get the caller's token.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from werkzeug import Request, Response
from werkzeug.utils import send_file

from tests.support.http_server import serving

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

    def respond(self, request: Request) -> Response:
        # Another name of this machine is another host.
        host = "other" if request.host.startswith("localhost") else "hub"
        self.tokens[host].add(request.headers.get("Authorization"))
        listed = re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", request.path)
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", request.path)
        name, revision = named.group(1, 2) if (named := listed or found) else ("", None)
        if not (self.root / name).is_dir() or revision not in (None, "main", self.commit(name)):
            return Response(b"{}", 404, {"X-Error-Code": "RepoNotFound"})
        if not found:
            return Response(json.dumps(self.describe(name)))
        file = self.root / name / found[3]
        if file.stat().st_size >= LARGE and host == "hub":
            other = request.url.replace("127.0.0.1", "localhost", 1)
            return Response(status=302, headers={"Location": other})
        response = send_file(file, request.environ, conditional=True)
        self.sent[file.name] = self.sent.get(file.name, 0) + (response.content_length or 0)
        return response


@contextmanager
def running_hub(root: Path) -> Iterator[Hub]:
    """Run the hub; ``HF_ENDPOINT`` must lead to its ``url``."""
    hub = Hub(root)
    with serving(hub.respond) as hub.url:
        yield hub
