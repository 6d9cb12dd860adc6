"""docs/run/expose-the-port.md: its commands work as written."""

from __future__ import annotations

from tests.integration.access.locked_boxes import CALL_COMMANDS, INVOKE_COMMAND, LockedBox
from tests.support import pages


def test_the_pages_curl_commands_call_the_box_that_its_other_commands_set_up(locked: LockedBox) -> None:
    commands = CALL_COMMANDS.replace("localhost:8443", f"localhost:{locked.tls_port}")
    assert commands.count("curl") == 3
    pages.run_commands(commands, locked.folder, locked.box.port)


def test_sm_invoke_sends_the_key_and_trusts_the_certificate(locked: LockedBox) -> None:
    (locked.folder / "ask.json").write_text('{"modelname":"probe","payload":{"numbers":[5]}}')
    command = INVOKE_COMMAND.replace("localhost:8443", f"localhost:{locked.tls_port}")
    # The box of these tests has no bert_base.
    original_arguments = "--text 'Paris is the [MASK] of France.' --model bert_base"
    assert original_arguments in command
    (answer,) = pages.run_commands(
        command.replace(original_arguments, "--json ask.json --raw"), locked.folder, locked.box.port
    )
    assert answer["result"] == [5]
