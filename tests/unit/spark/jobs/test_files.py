"""Small files of jobs: whole or not at all, on any file system."""

import pytest

from kerolox.errors import ConfigError
from kerolox.spark.jobs.frame.errors import JobError
from kerolox.spark.jobs.frame.files import Folder


def test_a_folder_that_is_not_there_is_empty(tmp_path):
    folder = Folder(str(tmp_path / "none"))
    assert folder.names() == []
    assert list(folder.files()) == []
    assert folder.read_json("a.json") is None
    folder.delete("a.json")
    folder.delete_folder()


def test_paths_and_uris_name_the_same_folder(tmp_path):
    Folder(str(tmp_path)).write_json("a/b.json", {"x": 1})
    assert Folder(f"file://{tmp_path}").read_json("a/b.json") == {"x": 1}
    assert Folder(f"file://{tmp_path}").below("a").path("b.json") == f"file://{tmp_path}/a/b.json"


def test_a_path_of_no_file_system_is_an_error():
    with pytest.raises(ConfigError, match="path gopher://x can't be used"):
        Folder("gopher://x")


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    folder = Folder(str(tmp_path))
    folder.write_json("a.json", {"x": 1})
    monkeypatch.setattr(folder, "_sync", _fail)
    with pytest.raises(OSError, match="no space"):
        folder.write_json("a.json", {"x": 2})
    assert folder.read_json("a.json") == {"x": 1}
    assert folder.names() == ["a.json"]


def _fail(_path):
    raise OSError("no space")


def test_a_move_may_be_done_twice(tmp_path):
    source, target = Folder(str(tmp_path / "s")), Folder(str(tmp_path / "t"))
    source.write_text("x", "1")
    source.move("x", target, "a/b/y")
    source.move("x", target, "a/b/y")
    assert target.read_text("a/b/y") == "1"
    target.delete("a/b/y")
    with pytest.raises(JobError, match="something else removed it"):
        source.move("x", target, "a/b/y")


@pytest.mark.parametrize("data", [b"\xff", b"{", b"[1]"])
def test_what_is_no_object_of_json_is_an_error_that_names_the_file(tmp_path, data):
    (tmp_path / "a.json").write_bytes(data)
    with pytest.raises(JobError, match=r"a\.json"):
        Folder(str(tmp_path)).read_json("a.json")
