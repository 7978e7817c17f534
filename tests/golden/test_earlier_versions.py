"""What each released version wrote, this one opens and serves, with both kernels."""

from __future__ import annotations

import json
import tarfile
from collections import Counter
from pathlib import Path

import pytest

from kerolox.admin.consumers.progress import QueueProgress
from kerolox.admin.sync import Admin
from kerolox.inspect.check import check_store
from kerolox.inspect.dump import OFFSET_MAX, Selection, as_json, select_records
from kerolox.inspect.findings import Findings
from kerolox.inspect.places import StoreOptions, StorePlaces
from kerolox.protocol.names import SCHEDULE_TOPIC
from tests.golden.make_earlier_store import COUNT
from tests.support.eventually import wait_until
from tests.support.kernels import KERNELS
from tests.support.servers.up import Up
from tests.support.unpacked import unpack_archive

ARCHIVES = sorted(Path(__file__).parent.glob("kerolox-*.tar.xz"))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.name)
def test_a_store_of_an_earlier_version_is_served(
    archive: Path, kernel: str, tmp_path: Path
) -> None:
    with tarfile.open(archive) as file:
        unpack_archive(file, tmp_path)
    settings = json.loads((tmp_path / "settings.json").read_text())
    records = [json.loads(line) for line in (tmp_path / "records.jsonl").read_text().splitlines()]
    assert len(records) > COUNT
    places = StorePlaces.find(str(tmp_path / "store"), StoreOptions())
    report = check_store(places)
    assert (report.findings.kept, report.records) == ([], len(records))
    selection = Selection(to_offset=OFFSET_MAX)
    found = [as_json(each, "text") for each in select_records(places, selection, Findings())]
    assert json.loads(json.dumps(found)) == records
    # All of them are due by now, so they are delivered once more, soon after the start.
    delayed = Counter(
        int(record["properties"]["REAL_QID"])
        for record in records
        if record["topic"] == SCHEDULE_TOPIC
    )
    kept = sum(record["topic"] == "Kept" for record in records)
    with Up(tmp_path, settings=settings, kernel=kernel) as up, Admin(up.namesrv) as admin:
        assert {"Kept"} == {"Kept", "Gone"} & set(admin.list_topics())

        def queues() -> tuple[QueueProgress, ...]:
            return admin.group_progress("readers").queues

        expected = kept + delayed.total()
        wait_until(
            lambda: sum(queue.broker_offset for queue in queues()) >= expected,
            what="the delayed messages",
        )
        assert sum(queue.broker_offset for queue in queues()) == expected
        lags = {each.queue.queue_id: each.lag for each in queues()}
        assert lags == {queue_id: 20 + delayed[queue_id] for queue_id in lags}
    log = (tmp_path / "up.log").read_text()
    assert "error" not in log.lower()
    assert check_store(StorePlaces.find(str(tmp_path / "store"), StoreOptions())).is_clean
