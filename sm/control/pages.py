"""The pages: the playground at ``/``, its samples, ``/docs`` and what it shows."""

from __future__ import annotations

import gzip
import hashlib
import json
import mimetypes
from functools import partial
from pathlib import Path

import orjson
from flask import Blueprint, Response, request

from sm.control.routes import limit_bodies
from sm.errors import NotFound
from sm.http.messages import Answer
from sm.http.openapi import MAX_SAMPLE_BYTES, document
from sm.http.responses import respond
from sm.run_state import Box

FOLDER = Path(__file__).with_name("page")
#: The pages load only from this box. Scripts and styles are files: none is allowed within the HTML.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "media-src blob: data:; connect-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
#: The API viewer sets styles within its HTML.
DOCS_POLICY = POLICY.replace("style-src 'self'", "style-src 'self' 'unsafe-inline'")
#: A sample opened by itself runs nothing: it may be HTML or SVG.
SAMPLE_POLICY = "default-src 'none'; sandbox; frame-ancestors 'none'"
#: Each page with its file and its policy.
PAGES = (("/", "index", POLICY), ("/docs", "docs", DOCS_POLICY))
#: Features of browsers that no page here uses.
PERMISSIONS = "camera=(), geolocation=(), microphone=(), payment=(), usb=()"
TYPES = {".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css"}


def blueprint(box: Box) -> Blueprint:
    """Create the routes of the pages."""
    routes = Blueprint("pages", __name__)
    limit_bodies(routes)
    files = page_files(FOLDER)

    for rule, name, policy in PAGES:
        routes.add_url_rule(rule, name, partial(send, FOLDER / f"{name}.html", policy))

    @routes.get("/openapi.json")
    def openapi() -> Response:
        return respond(Answer(openapi_document(box)))

    @routes.get("/page/<name>")
    def page_file(name: str) -> Response:
        path = files.get(name)
        if path is None:
            raise NotFound(f"no such file of the page: {name[:100]}")
        return send(path)

    @routes.get("/samples/<client>/<name>")
    def sample(client: str, name: str) -> Response:
        path = sample_paths(box).get(client, {}).get(name)
        if path is None:
            raise NotFound(f"{client[:100]!r} has no sample {name[:100]!r}")
        headers = {"Content-Security-Policy": SAMPLE_POLICY, "X-Content-Type-Options": "nosniff"}
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return respond(Answer(_read_sample(Path(path)), kind, headers=headers))

    return routes


def page_files(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by the names that pages load them by: not the licences."""
    names = {path.name.removesuffix(".gz"): path for path in folder.glob("**/*")}
    return {name: path for name, path in names.items() if Path(name).suffix in TYPES}


def send(path: Path, policy: str = POLICY) -> Response:
    """Send a file of the page, or a 304 if the browser has this version.

    Large files of other projects are stored as gzip.
    """
    content, kind = path.read_bytes(), TYPES[Path(path.name.removesuffix(".gz")).suffix]
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Permissions-Policy": PERMISSIONS,
        "Cache-Control": "no-cache",
        "ETag": tag,
    }
    if request.headers.get("If-None-Match", "").removeprefix("W/") == tag:
        return respond(Answer(b"", kind, 304, headers))
    if path.suffix == ".gz" and "gzip" in request.headers.get("Accept-Encoding", ""):
        headers["Content-Encoding"] = "gzip"
    elif path.suffix == ".gz":
        content = gzip.decompress(content)
    return respond(Answer(content, kind, headers=headers))


def sample_paths(box: Box) -> dict[str, dict[str, str]]:
    """Return the paths of the clients' samples, by client and file name. The workers write this list."""
    try:
        paths: dict[str, dict[str, str]] = json.loads(box.samples_file.read_bytes())
    except FileNotFoundError:
        return {}
    return paths


def _read_sample(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SAMPLE_BYTES + 1)
    except OSError:
        raise NotFound(f"the sample {path.name[:100]!r} cannot be read") from None
    if len(content) > MAX_SAMPLE_BYTES:
        raise NotFound(f"the sample {path.name[:100]!r} is larger than {MAX_SAMPLE_BYTES:,} bytes")
    return content


def openapi_document(box: Box) -> bytes:
    """Return the document that the workers write; until then, that of a box without clients."""
    try:
        return box.openapi_file.read_bytes()
    except FileNotFoundError:
        return orjson.dumps(document())
