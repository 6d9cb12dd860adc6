"""Records of loaded archives are kept in a file that all processes share."""

from __future__ import annotations

from pathlib import Path

from sm.multimodel.load_records import Record, Records

LOADED = Record("one", "/a", "1", "one", {"model": "one"}, target="cats.tar.gz", loaded=True)
LOADING = Record("two", "/b", "2", "two", {"pre": "pre", "model": "two"}, loaded=False)


def test_a_record_written_by_one_process_is_read_by_another(tmp_path: Path) -> None:
    records = Records(tmp_path / "models.json")
    assert not records.read().records
    records.put(LOADED)
    records.put(LOADING)
    assert Records(tmp_path / "models.json").read().records == {"one": LOADED, "two": LOADING}
    records.remove("one")
    assert Records(tmp_path / "models.json").read().records == {"two": LOADING}


def test_an_archive_that_is_still_loading_is_not_found(tmp_path: Path) -> None:
    records = Records(tmp_path / "models.json")
    records.put(LOADED)
    records.put(LOADING)
    snapshot = records.read()
    assert (snapshot.find("one"), snapshot.find("cats.tar.gz"), snapshot.find("two")) == (
        LOADED,
        LOADED,
        None,
    )
    assert snapshot.find("") is None


def test_a_write_that_was_cut_short_leaves_the_old_file(tmp_path: Path) -> None:
    records = Records(tmp_path / "models.json")
    records.put(LOADED)
    (tmp_path / "models.json.new").write_text("[{")
    assert list(Records(tmp_path / "models.json").read().records) == ["one"]
    records.put(LOADING)
    assert sorted(records.read().records) == ["one", "two"]
