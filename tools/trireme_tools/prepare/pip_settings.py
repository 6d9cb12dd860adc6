"""The settings of pip on this machine, as settings of uv and npm, which do not read pip's files.

A company's mirror, proxy and certificate are often known to pip alone. set_up.py uses this before anything is
installed: it imports the standard library alone, and runs on Python 3.9.
"""

from __future__ import annotations

import ast
import os
import subprocess
from collections.abc import Mapping

#: Where pip looks for certificates if none is set for it, in this order; npm and uv read neither of the
#: first two.
CERTIFICATES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE")
#: pip's option, and uv's variable for it where the value needs no translation.
SAME_VALUE = (
    ("index-url", "UV_DEFAULT_INDEX"),
    ("extra-index-url", "UV_EXTRA_INDEX_URL"),
    ("trusted-host", "UV_INSECURE_HOST"),
    ("client-cert", "SSL_CLIENT_CERT"),
    ("default-timeout", "UV_HTTP_TIMEOUT"),
    ("timeout", "UV_HTTP_TIMEOUT"),
)
OFF = ("", "0", "no", "off", "false", "n", "f")

Options = dict[str, str]


def read(python: str, environment: Mapping[str, str]) -> Options:
    """Return pip's options for an installation by their long names, from its files and its variables.

    Args:
        python: An interpreter that has pip.
        environment: The variables that pip would see.
    """
    listing = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", "config", "list"],
        env=dict(environment),
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    ).stdout
    return parse(listing)


def parse(listing: str) -> Options:
    """Read the output of ``pip config list``: a command's section beats the global one, a variable both."""
    found: dict[str, Options] = {"global": {}, "install": {}, ":env:": {}}
    for line in listing.splitlines():
        name, _, value = line.partition("=")
        section, _, option = name.rpartition(".")
        if section in found:
            try:
                found[section][option] = str(ast.literal_eval(value))
            except (SyntaxError, ValueError):
                continue
    return {**found["global"], **found["install"], **found[":env:"]}


def certificate(options: Mapping[str, str], environment: Mapping[str, str]) -> str:
    """Return the file of the certificates that pip trusts; empty if it takes the system's."""
    candidates = [options.get("cert", ""), *(environment.get(name, "") for name in CERTIFICATES)]
    return next((path for path in candidates if os.path.isfile(path)), "")  # noqa: PTH113


def for_uv(options: Mapping[str, str], environment: Mapping[str, str]) -> Options:
    """Return variables with which uv uses the same indexes, proxy and certificates as pip.

    A variable of uv that is set already stays.
    """
    made = {variable: " ".join(options[name].split()) for name, variable in SAME_VALUE if options.get(name)}
    # pip takes the best file of all its indexes, and uv by default those of the first that knows the
    # name. Each file
    # has its hash in the lock.
    made["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if links := options.get("find-links", "").split():
        made["UV_FIND_LINKS"] = ",".join(links)
    if options.get("no-index", "").lower() not in OFF:
        made["UV_NO_INDEX"] = "true"
    if options.get("keyring-provider") in ("subprocess", "import", "auto"):
        made["UV_KEYRING_PROVIDER"] = "subprocess"
    if proxy := options.get("proxy"):
        made.update(dict.fromkeys(("HTTPS_PROXY", "HTTP_PROXY"), proxy))
    if file := certificate(options, environment):
        made["SSL_CERT_FILE"] = file
    else:
        made["UV_SYSTEM_CERTS"] = made["UV_NATIVE_TLS"] = "true"
    return {
        **made,
        **{name: environment[name] for name in made if name.startswith("UV_") and name in environment},
    }


def for_npm(options: Mapping[str, str], environment: Mapping[str, str]) -> Options:
    """Return variables with which npm trusts the certificates that pip trusts. Node adds them to its own."""
    file = "" if environment.get("NODE_EXTRA_CA_CERTS") else certificate(options, environment)
    return {"NODE_EXTRA_CA_CERTS": file} if file else {}
