"""``controller_of_java.tsv`` was written by the classes of RocketMQ 5.3.3: a name, the JSON header
of a frame and its body, with tabs between."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from kerolox.protocol import controller
from kerolox.protocol.bodies import BodyError, decode_request, encode_body
from kerolox.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode, SerializeType
from kerolox.protocol.command import RemotingCommand
from kerolox.protocol.controller import (
    AlterSyncStateSetHeader,
    AlterSyncStateSetResponseHeader,
    ApplyBrokerIdHeader,
    ApplyBrokerIdResponseHeader,
    BrokerHeartbeatHeader,
    BrokerMemberGroup,
    BrokerReplicasInfo,
    CleanBrokerDataHeader,
    ElectMasterHeader,
    ElectMasterResponseBody,
    EpochEntry,
    EpochEntryCache,
    GetMetaDataResponseHeader,
    GetNextBrokerIdHeader,
    GetNextBrokerIdResponseHeader,
    GetReplicaInfoHeader,
    GetReplicaInfoResponseHeader,
    MasterHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
    ReplicaIdentity,
    ReplicasInfo,
    SyncStateSet,
    decode_broker_names,
)
from kerolox.protocol.framing import encode_frame
from kerolox.protocol.headers import HeaderFieldError

if TYPE_CHECKING:
    from kerolox.protocol.headers import Header

LINES = Path(__file__).with_name("controller_of_java.tsv").read_text().splitlines()
JAVA = {name: (header, body.encode()) for name, header, body in (x.split("\t") for x in LINES)}
INVOKED = 1_700_000_000_000
HOST = "127.0.0.1"

IDS = {"cluster_name": "c", "broker_name": "b"}
NEW_MASTER = {"master_broker_id": 2, "master_address": f"{HOST}:2", "master_epoch": 4}
MASTER = {"master_broker_id": 1, "master_address": f"{HOST}:1", "master_epoch": 1}

HEADERS: dict[str, Header] = {
    "904": BrokerHeartbeatHeader(
        **IDS,
        broker_addr=f"{HOST}:1",
        broker_id=2,
        epoch=3,
        max_offset=4,
        confirm_offset=5,
        heartbeat_timeout_mills=6,
        election_priority=7,
    ),
    "1001": AlterSyncStateSetHeader(
        broker_name="b", master_broker_id=1, master_epoch=3, invoke_time=INVOKED
    ),
    "1001r": AlterSyncStateSetResponseHeader(new_sync_state_set_epoch=5),
    "1002": ElectMasterHeader(**IDS, broker_id=2, designate_elect=True, invoke_time=INVOKED),
    "1002broker": ElectMasterHeader(**IDS, broker_id=2, invoke_time=INVOKED),
    "1002r": MasterHeader(**NEW_MASTER, sync_state_set_epoch=6),
    "1002still": MasterHeader(**NEW_MASTER, sync_state_set_epoch=6),
    "1003": RegisterBrokerHeader(
        **IDS, broker_id=2, broker_address=f"{HOST}:2", invoke_time=INVOKED
    ),
    "1003r": RegisterBrokerResponseHeader(**IDS, **MASTER, sync_state_set_epoch=2),
    "1003none": RegisterBrokerResponseHeader(**IDS),
    "1004": GetReplicaInfoHeader(broker_name="b"),
    "1004r": GetReplicaInfoResponseHeader(**MASTER),
    "1005r": GetMetaDataResponseHeader(
        group="group1",
        controller_leader_id="n0",
        controller_leader_address=f"{HOST}:9878",
        is_leader=True,
        peers=f"n0:{HOST}:9878;n1:{HOST}:9868;",
    ),
    "1008": MasterHeader(**NEW_MASTER, sync_state_set_epoch=6),
    "1011": CleanBrokerDataHeader(
        **IDS,
        broker_controller_ids_to_clean="1;2",
        is_clean_living_broker=True,
        invoke_time=INVOKED,
    ),
    "1012": GetNextBrokerIdHeader(**IDS),
    "1012r": GetNextBrokerIdResponseHeader(**IDS, next_broker_id=3),
    "1013": ApplyBrokerIdHeader(
        **IDS, applied_broker_id=3, register_check_code=f"{HOST}:3;{INVOKED}"
    ),
    "1013r": ApplyBrokerIdResponseHeader(**IDS),
}

SET = SyncStateSet(sync_state_set=[1, 2], sync_state_set_epoch=5)
REPLICAS = [
    ReplicaIdentity(alive=alive, broker_address=f"{HOST}:{each}", broker_id=each, broker_name="b")
    for each, alive in ((1, True), (2, False))
]
BODIES: dict[str, msgspec.Struct] = {
    **dict.fromkeys(("1001", "1001r", "1003r", "1004r", "1008"), SET),
    "1003none": SyncStateSet(sync_state_set=[], sync_state_set_epoch=0),
    "1002r": ElectMasterResponseBody(
        broker_member_group=BrokerMemberGroup(
            broker_addrs={1: f"{HOST}:1", 2: f"{HOST}:2"}, broker_name="b", cluster="c"
        ),
        sync_state_set=[2],
    ),
    "1002still": ElectMasterResponseBody(sync_state_set=[2]),
    "1006r": BrokerReplicasInfo(
        replicas_info_table={
            "b": ReplicasInfo(
                in_sync_replicas=REPLICAS[:1],
                master_address=f"{HOST}:1",
                master_broker_id=1,
                master_epoch=1,
                not_in_sync_replicas=REPLICAS[1:],
                sync_state_set_epoch=2,
            ),
            "d": ReplicasInfo(master_epoch=2, sync_state_set_epoch=3),
        }
    ),
    "1007r": EpochEntryCache(
        broker_id=1,
        broker_name="b",
        cluster_name="c",
        epoch_list=[
            EpochEntry(epoch=1, start_offset=0, end_offset=100),
            EpochEntry(epoch=2, start_offset=100),
        ],
        max_offset=200,
    ),
}


def command_of(name: str) -> RemotingCommand:
    """The frame that Java's classes wrote."""
    header, body = JAVA[name]
    frame = encode_frame(header.encode(), body, SerializeType.JSON)
    return RemotingCommand.decode(frame[4:])


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_is_javas(name: str) -> None:
    command, ours = command_of(name), HEADERS[name]
    assert type(ours).decode(command.ext_fields) == ours
    assert ours.encode() == command.ext_fields
    if command.flag & FLAG_RESPONSE:
        assert command.code in (ResponseCode.SUCCESS, ResponseCode.CONTROLLER_MASTER_STILL_EXIST)
    else:
        assert command.code == RequestCode(int(name[:4]))


@pytest.mark.parametrize("name", BODIES)
def test_a_body_is_javas(name: str) -> None:
    body = JAVA[name][1]
    assert decode_request(body, type(BODIES[name])) == BODIES[name]
    assert encode_body(BODIES[name]) == body


def test_all_that_java_wrote_is_compared() -> None:
    assert JAVA.keys() == HEADERS.keys() | BODIES.keys() | {"1006names"}


def test_broker_names_are_a_list_of_texts() -> None:
    assert decode_broker_names(JAVA["1006names"][1]) == ["b", "d"]
    for body in (b"", b'"b"', b'{"names":["b"]}', b"[1]", b"[[]]", b'["b"],"names":["c"]'):
        with pytest.raises(BodyError):
            decode_broker_names(body)


def test_a_request_may_name_so_many_brokers_and_no_more() -> None:
    most = controller.BROKER_NAMES_MAX
    assert len(decode_broker_names(encode_body(["b"] * most))) == most
    with pytest.raises(BodyError, match="length <= 1024"):
        decode_broker_names(encode_body(["b"] * (most + 1)))
    ids = list(range(controller.BROKERS_OF_SET_MAX + 1))
    with pytest.raises(BodyError, match="length <= 1024"):
        decode_request(encode_body({"syncStateSet": ids, "syncStateSetEpoch": 1}), SyncStateSet)


def test_a_missing_or_long_member_is_named() -> None:
    with pytest.raises(HeaderFieldError, match="<brokerId> is null"):
        RegisterBrokerHeader.decode({"clusterName": "c", "brokerName": "b", "brokerAddress": "a"})
    with pytest.raises(HeaderFieldError, match="registerCheckCode"):
        ApplyBrokerIdHeader.decode({**HEADERS["1013"].encode(), "registerCheckCode": "x" * 2_000})
