"""Find the ports that a process listens on."""

from __future__ import annotations

from pathlib import Path


def listening_ports(pid: int) -> dict[int, str]:
    """Return the TCP ports that a process listens on, with their addresses in the kernel's hexadecimal form."""
    inodes = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        try:
            inodes.add(str(link.readlink()).removeprefix("socket:[").removesuffix("]"))
        except OSError:
            continue
    found = {}
    for table in ("tcp", "tcp6"):
        for row in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *rest = row.split()
            if state == "0A" and rest[5] in inodes:
                address, port = local.split(":")
                found[int(port, 16)] = address
    return found
