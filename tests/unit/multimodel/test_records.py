"""What is loaded survives whoever knows of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sm.multimodel.load_records import Record, Records

ONE = Record("one", "/a", "1", "one", {"model": "one"}, target="cats.tar.gz", loaded=True)
TWO = Record("two", "/b", "2", "two", {"pre": "pre", "model": "two"}, loaded=False)


def test_another_process_finds_what_one_has_written(tmp_path: Path) -> None:
    records = Records(tmp_path / "models.json")
    assert not records.read().records
    records.put(ONE)
    records.put(TWO)
    assert Records(tmp_path / "models.json").read().records == {"one": ONE, "two": TWO}
    records.remove("one")
    assert Records(tmp_path / "models.json").read().records == {"two": TWO}


def test_reading_again_is_the_same_object_until_something_changes(tmp_path: Path) -> None:
    writer, reader = Records(tmp_path / "models.json"), Records(tmp_path / "models.json")
    assert reader.read() is reader.read()
    writer.put(ONE)
    first = reader.read()
    assert reader.read() is first
    writer.put(replace(ONE, id="9"))
    assert reader.read() is not first
    assert reader.read().records["one"].id == "9"


def test_what_is_on_its_way_is_not_found(tmp_path: Path) -> None:
    records = Records(tmp_path / "models.json")
    records.put(ONE)
    records.put(TWO)
    snapshot = records.read()
    assert (snapshot.find("one"), snapshot.find("cats.tar.gz"), snapshot.find("two")) == (ONE, ONE, None)
    assert snapshot.find("") is None
    assert snapshot.triton_models() == ["one"]


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    """A write that is cut short leaves the old file."""
    records = Records(tmp_path / "models.json")
    records.put(ONE)
    (tmp_path / "models.json.new").write_text("[{")
    assert list(Records(tmp_path / "models.json").read().records) == ["one"]
    records.put(TWO)
    assert sorted(records.read().records) == ["one", "two"]
