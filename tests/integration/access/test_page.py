"""docs/run/expose-the-port.md: its commands work as written."""

from __future__ import annotations

from tests.support import pages
from tests.support.locked_boxes import CALL, INVOKE, LockedBox


def test_the_commands_of_the_page_call_the_box_that_its_other_commands_have_set_up(locked: LockedBox) -> None:
    here = CALL.replace("localhost:8443", f"localhost:{locked.tls_port}")
    assert here.count("curl") == 3
    pages.run(here, locked.folder, locked.box.port)


def test_sm_invoke_sends_the_key_and_trusts_the_certificate(locked: LockedBox) -> None:
    (locked.folder / "ask.json").write_text('{"modelname":"probe","payload":{"numbers":[5]}}')
    here = INVOKE.replace("localhost:8443", f"localhost:{locked.tls_port}")
    # The box of these tests has no bert_base.
    words = "--text 'Paris is the [MASK] of France.' --model bert_base"
    assert words in here
    (answer,) = pages.run(here.replace(words, "--json ask.json --raw"), locked.folder, locked.box.port)
    assert answer["result"] == [5]
