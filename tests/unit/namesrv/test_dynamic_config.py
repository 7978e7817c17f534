"""Settings of a name server that requests (318) and reloads change, and what shows them (319)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.namesrv.test_handlers import Server

from kerolox.config import read_properties, setting_keys
from kerolox.dynamic_config import CHANGE_BYTES_MAX
from kerolox.namesrv.config import NamesrvConfig
from kerolox.namesrv.server import NameServer
from kerolox.properties import parse_properties
from kerolox.protocol.codes import RequestCode
from kerolox.role_settings import MetricsSettings

NEVER = (
    *"configBlackList configStorePath kvConfigPath listenHost listenPort maxConnections".split(),
    *"maxConnectionsPerAddress writerAddresses writerAccounts writerCertificates".split(),
    *("restrictReaders", "enableControllerInNamesrv"),
    *setting_keys(MetricsSettings),
)


async def change(server: Server, text: str) -> tuple[int, str]:
    answer = await server.ask(RequestCode.UPDATE_NAMESRV_CONFIG, text.encode())
    return answer.code, answer.remark or ""


async def shown(server: Server) -> dict[str, str]:
    answer = await server.ask(RequestCode.GET_NAMESRV_CONFIG)
    return parse_properties(answer.body.decode())


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path)


async def test_files_addresses_and_ports_stay_and_the_answer_says_why(server: Server) -> None:
    before = await shown(server)
    for key in NEVER:
        code, remark = await change(server, f"clusterTest=true\n{key}={before[key]}\n")
        assert (code, key in remark) == (16, True)
        assert "edit the settings file and restart" in remark
    assert await shown(server) == before
    assert not server.config.settings_file.exists()
    wire = {name for name in before if name not in NEVER}
    assert wire == {
        "productEnvName",
        "clusterTest",
        "orderMessageEnable",
        "logLevel",
        "maxRequestsPerSecondPerAddress",
        "requestBurstMillis",
        "serverChannelMaxIdleTimeSeconds",
        "serverSocketBacklog",
    }


async def test_no_value_makes_a_line_of_its_own(server: Server) -> None:
    for forged in ("c\\u000akvConfigPath=/any/path", "c\\nkvConfigPath=/any/path"):
        code, remark = await change(server, f"productEnvName={forged}\n")
        assert (code, "control character" in remark) == (1, True)
    assert await change(server, "productEnvName=c\\\\u000akvConfigPath=/any") == (0, "")
    written = read_properties(server.config.settings_file)
    assert written == {"productEnvName": "c\\u000akvConfigPath=/any"}


async def test_requests_and_values_have_a_length(server: Server) -> None:
    assert (await change(server, "productEnvName=" + "x" * 255))[0] == 0
    assert (await change(server, "productEnvName=" + "x" * 256))[0] == 1
    assert (await change(server, "productEnvName=" + "x" * CHANGE_BYTES_MAX))[0] == 1
    code, remark = await change(server, "".join(f"clusterTes{n}=1\n" for n in range(900)))
    assert (code, "and 897 more" in remark) == (1, True)


async def test_only_what_was_changed_is_written_and_comments_stay(server: Server) -> None:
    path = server.config.settings_file
    path.write_text("# ours\nserverWorkerThreads = 9\n\nclusterTest = false\n")
    assert await change(server, "clusterTest=true\nproductEnvName=e\n") == (0, "")
    assert path.read_text() == (
        "# ours\nserverWorkerThreads = 9\n\nclusterTest = true\nproductEnvName=e\n"
    )


async def test_what_waits_for_a_restart_is_told_and_shown_as_such(server: Server) -> None:
    code, remark = await change(server, "serverSocketBacklog=77\norderMessageEnable=true\n")
    assert (code, remark) == (
        0,
        f"written to {server.config.settings_file}, in force at the next start: "
        "serverSocketBacklog",
    )
    settings = await shown(server)
    assert settings["serverSocketBacklog"] == "1024"
    assert settings["pendingRestart.serverSocketBacklog"] == "77"
    assert settings["orderMessageEnable"] == "true"
    assert server.handlers.config.order_message_enable


async def test_a_reload_takes_what_is_live_and_a_wrong_file_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "namesrv.conf"
    path.write_text(f"kvConfigPath={tmp_path}/kv.json\n")
    config = NamesrvConfig.load_for_start(path, listen_port=0, listen_host="127.0.0.1")
    async with NameServer(config) as server:
        path.write_text(f"kvConfigPath={tmp_path}/kv.json\nclusterTest=true\nlistenPort=1\n")
        await server.reload_settings()
        assert server.config.cluster_test
        assert server.config.listen_port == 0
        path.write_text("clusterTest=false\nlistnPort=1\n")
        await server.reload_settings()
        assert server.config.cluster_test
    errors = [each.getMessage() for each in caplog.records if each.levelname == "ERROR"]
    assert errors == [
        f"settings stay as they are: {path}: unknown setting 'listnPort' "
        "(did you mean 'listenPort'?)"
    ]


async def test_a_start_without_a_file_reads_what_requests_changed_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "namesrv.properties"
    kept.write_text("clusterTest=true\nkvConfigPath=/etc/x\nlistenPort=1\nnoSuchKey=1\n")
    files = {"config_store_path": kept, "kv_config_path": tmp_path / "kv.json"}
    config = NamesrvConfig.load_for_start(None, listen_port=0, **files)
    assert (config.cluster_test, config.listen_port) == (True, 0)
    assert config.kv_config_path == tmp_path / "kv.json"
    assert "not read: kvConfigPath, listenPort, noSuchKey" in caplog.text
    assert config.source is not None
    assert config.source.keys == ("clusterTest",)
