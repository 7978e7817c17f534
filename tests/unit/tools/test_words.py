"""`tools/words.py` on small trees."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("words", ROOT / "tools/words.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["words"] = module  # where dataclasses look the module up
    spec.loader.exec_module(module)
    return module


def plant(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("src/kerolox/client/a.py", "# It takes the general\n#   way.\n", "general way"),
        ("src/kerolox/client/a.py", "\nclass PlainSends:\n    pass\n", "PlainSends"),
        ("src/kerolox/client/a.py", "\ndef look(self): ...\n", "def look("),
        ("src/kerolox/metrics/a.py", "\n# figures of a role\n", "figures"),
        ("src/kerolox/remoting/a.py", "\nONEWAY_PER_TURN = 1\n", "ONEWAY_PER_TURN"),
        ("src/kerolox/doctor/a.py", "\n# It judges.\n", "judges"),
        ("kernel/core/src/a.rs", "\n/// Its twin.\n", "twin"),
        ("docs/guides/a.md", "\nLook; the guide looks\nat it.\n", "looks at"),
        ("src/kerolox/admin/a.py", "\nclass _Told:\n    pass\n", "class _Told"),
    ],
)
def test_a_refused_word_is_named_with_file_and_line(
    tool: ModuleType, tmp_path: Path, path: str, text: str, said: str
) -> None:
    plant(tmp_path, path, text)
    line = 1 if text.startswith("#") else 2
    wrong = tool.complaints(tmp_path)
    assert any(each.startswith(f"{path}:{line}: {said!r} is refused; say: ") for each in wrong)


def test_plain_english_and_other_files_are_not_refused(tool: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "src/kerolox/client/a.py", "# look up; look for; in turn; machine room\n")
    plant(tmp_path, "src/kerolox/spark/a.py", "# the figures that were measured\n")
    plant(tmp_path, "src/kerolox/console/a.py", "# a lane\n")
    plant(tmp_path, "tests/unit/a.py", "# a twin looks at it\n")
    assert tool.complaints(tmp_path) == []


def test_a_class_name_of_two_meanings_does_not_come_back(tool: ModuleType, tmp_path: Path) -> None:
    plant(tmp_path, "src/kerolox/client/a.py", "class Cluster:\n    pass\n")
    assert tool.complaints(tmp_path) == []
    plant(tmp_path, "src/kerolox/spark/b.py", "class _Cluster:\n    pass\n")
    [line] = tool.complaints(tmp_path)
    assert line.startswith("class Cluster is in src/kerolox/client/a.py, src/kerolox/spark/b.py")
