from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.errors import ConfigError
from kerolox.namesrv import key_values as module
from kerolox.namesrv.key_values import KeyValues


async def test_the_table_is_there_again_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "namesrv" / "kvConfig.json"
    first = KeyValues(path)
    first.load()
    await first.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    await first.put("ORDER_TOPIC_CONFIG", "U", "broker-ä:1")
    second = KeyValues(path)
    second.load()
    assert second.namespace("ORDER_TOPIC_CONFIG") == {
        "T": "broker-a:4;broker-b:4",
        "U": "broker-ä:1",
    }
    assert (path.with_name("kvConfig.json.bak")).exists()


def test_an_empty_file_is_an_empty_table(tmp_path: Path) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text("\n")
    table = KeyValues(path)
    table.load()
    assert table.namespace("N") is None


@pytest.mark.parametrize("text", ["{", '{"configTable":[]}', '{"configTable":{"N":{"k":1.5}}}'])
def test_a_file_that_is_damaged_is_an_error_that_names_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "kvConfig.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=r"kvConfig\.json: .* mend it"):
        KeyValues(path).load()


def test_a_file_that_can_not_be_read_is_an_error_that_names_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read"):
        KeyValues(tmp_path).load()


async def test_the_table_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEY_VALUES_MAX", 1)
    table = KeyValues(tmp_path / "kvConfig.json")
    await table.put("N", "k", "1")
    await table.put("N", "k", "2")
    with pytest.raises(ConfigError, match="delete some"):
        await table.put("M", "k", "1")
