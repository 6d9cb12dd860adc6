"""What a build in the account is made of, and when it is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sm.errors import CommandError
from trireme_tools.codebuild import build_command, source

REGIONS = ("eu-west-1", "us-east-1")
WORDS = ("trireme", "--revision", "1-dirty", "--source", "unknown", "--target", "cpu")


class NewProject:
    """A project without builds."""

    def __init__(self, *_: Any) -> None:
        pass

    def builds(self) -> list[Any]:
        return []

    def missing(self) -> dict[str, Any]:
        raise AssertionError("a build was prepared")


@pytest.mark.parametrize("pushed", [REGIONS, REGIONS[:1], REGIONS[1:]])
def test_other_changes_get_no_build_where_any_region_has_their_tag(
    monkeypatch: pytest.MonkeyPatch, pushed: tuple[str, ...]
) -> None:
    def open_account(region: str, _dry: bool) -> Any:
        return SimpleNamespace(region=region, number="123456789012")

    monkeypatch.setattr(build_command, "open_account", open_account)
    monkeypatch.setattr(build_command, "is_pushed", lambda account, *_: account.region in pushed)
    monkeypatch.setattr(build_command, "Project", NewProject)
    monkeypatch.setattr(source, "pack", lambda _folder: b"")
    words = [*WORDS, "--tag", "0.2.0-1-dirty", *(word for each in REGIONS for word in ("--region", each))]
    with pytest.raises(CommandError, match="commit what you changed"):
        build_command.run(build_command.parser().parse_args(words))


@pytest.mark.parametrize("state", ["SUCCEEDED", "IN_PROGRESS"])
def test_the_same_changes_find_their_image_also_while_it_is_pushed_to_other_regions(state: str) -> None:
    names: Any = SimpleNamespace(repository="trireme")
    build_command.check_existing(names, "0.2.0-1-dirty", [{"buildStatus": state}])
    with pytest.raises(CommandError):
        build_command.check_existing(names, "0.2.0-1-dirty", [{"buildStatus": "FAILED"}])


def test_models_behind_links_are_sent(tmp_path: Path) -> None:
    weights = tmp_path / "elsewhere" / "1" / "weights"
    weights.parent.mkdir(parents=True)
    weights.write_bytes(b"w")
    models = tmp_path / "models"
    models.mkdir()
    (models / "echo").symlink_to(weights.parents[1])
    found = build_command.read_entries(models)
    assert [(each.name, each.is_folder) for each in found] == [
        ("echo", True),
        ("echo/1", True),
        ("echo/1/weights", False),
    ]
