"""Prepare new versions of models in a worker: make their clients, and compare golden answers."""

from __future__ import annotations

import json
import logging
import os
import time
from typing import Any

import numpy as np

from sm.client.base import Client
from sm.errors import CommandError
from sm.invocation import Invocation, ModelLease, running
from sm.models.load_records import LoadRecord, State
from sm.models.table import Models
from sm.plugins.golden import differences
from sm.run_state import Box, write_atomically

log = logging.getLogger(__name__)
#: Seconds for the golden answer of a new version.
GOLDEN_TIMEOUT_S = 60.0


def prepare(models: Models, record: LoadRecord) -> None:
    """Make the clients of a new version, and compare their golden answers. Raises why it cannot serve."""
    for row in models.rows_of(record):
        invocation = Invocation(time.monotonic() + GOLDEN_TIMEOUT_S)
        invocation.leases = {record.model: ModelLease(record, lambda: None)}
        try:
            with running(invocation):
                served = models.serve(row, invocation)
                if served is None or served.client is None:
                    raise CommandError(f"a model that {row.served.name!r} needs was unloaded")
                check_golden(served.client)
        finally:
            # The client may have used other models too.
            for lease in invocation.leases.values():
                lease.give_back()


def check_golden(client: Client) -> None:
    """Compare the answer to the client's sample with its golden one, if it has both."""
    payload, golden = (client.folder / "sample" / f"{part}.json" for part in ("payload", "golden"))
    if not (payload.is_file() and golden.is_file()):
        return
    value = json.loads(payload.read_bytes())
    members = value if isinstance(value, dict) else {client.payload.main_field: value}
    result = client.inference(client.payload.model_validate(members))
    plain = json.loads(json.dumps(result, default=_to_plain))
    wrong = list(differences(plain, json.loads(golden.read_bytes())))
    if wrong:
        raise CommandError(f"the golden answer of {client.name!r} differs: {'; '.join(wrong[:3])}")


def _to_plain(value: object) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else str(value)


def prepare_staged(models: Models, box: Box) -> bool:
    """Prepare new versions; tell the control plane of each why it cannot serve. True if there was one."""
    found = False
    for record in list(models.refresh().ids.values()):
        answer = box.prepared_folder / record.id / str(os.getpid())
        is_waiting = record.state is State.STAGED and answer.parent.is_dir()
        if not is_waiting or answer.exists():
            continue
        found = True
        try:
            prepare(models, record)
            reason = ""
        except BaseException as error:  # also a client's sys.exit()
            reason = str(error) or type(error).__name__
        try:
            write_atomically(answer, reason)
        except FileNotFoundError:
            log.info("the version %s was given up meanwhile", record.name)
    return found
