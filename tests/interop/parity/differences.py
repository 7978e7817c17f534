"""What mqadmin prints of our servers and not of Java's, or the other way round, and why.

``docs/differences.md`` names each of these commands.
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.broker.controller_mode_settings import ControllerModeSettings
from kerolox.broker.ha_settings import HaSettings
from kerolox.broker.unused_settings import UNUSED_KEYS as UNUSED_BY_BROKER
from kerolox.config import setting_keys
from kerolox.namesrv.config import UNUSED_KEYS as UNUSED_BY_NAME_SERVER

__all__ = ["DIFFERENCES", "Difference"]


SHOWN = {"clientCallbackExecutorThreads", "filterServerNums"}
"""Without effect, but looked for by exportConfigs and exportMetrics."""


SETTINGS_OF_5 = (
    *("allowRecallWhenBrokerNotWriteable", "defaultMessageRequestMode", "defaultPopShareQueueNum"),
    *("enableMixedMessageType", "mappedFileSizeTimerLog"),
    *("enableRetryTopicV2", "initPopOffsetByCheckMsgInMem", "maxPopPollingSize"),
    *(
        r"pop[A-Z]\w+",
        "grpcServerPort",
        "grpcAdvertisedAddress",
        "recallMessageEnable",
        "retrieveMessageFromPopRetryTopicV1",
        r"timer[A-Z]\w+",
        *(setting_keys(ControllerModeSettings).keys() - setting_keys(HaSettings).keys()),
    ),
)
"""Names of RocketMQ 5, which our broker serves."""


class Difference(NamedTuple):
    """Patterns of lines that only the one or the other prints."""

    reason: str
    ours: tuple[str, ...] = ()
    java: tuple[str, ...] = ()


def _one_of(*names: str) -> str:
    """A line of a setting or a figure, the broker's address before it or not."""
    return rf"^(<broker> )?({'|'.join(names)}) ?[:=]"


DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "brokerStatus": (
        Difference(
            "counters of connections, limits, accounts and the audit log are Kerolox's own",
            ours=(
                _one_of(r"acl\w+", r"audit\w+", r"connections\w*", r"requestsRefused\w+"),
                _one_of("brokerActive", "getTransferredTps"),
            ),
        ),
        Difference(
            "Kerolox says its own version and its kernel",
            ours=(_one_of("keroloxVersion", "keroloxKernel"),),
        ),
        Difference(
            "the version is that of the jar",
            ours=(_one_of("brokerVersion"),),
            java=(_one_of("brokerVersion"),),
        ),
        Difference(
            "the Java broker does not find the first message in a file of less than twice "
            "maxMessageSize",
            ours=(_one_of("earliestMessageTimeStamp"),),
            java=(r"earliestMessageTimeStamp ?: -1$",),
        ),
    ),
    "getBrokerConfig": (
        Difference(
            "settings that have no effect in Kerolox are not shown",
            java=(_one_of(*sorted(UNUSED_BY_BROKER.keys() - SHOWN)),),
        ),
        Difference(
            "settings of Kerolox's own, and those that are a system property or null in Java",
            ours=(
                _one_of(r"tls\..*", r"metrics?[A-Z]\w+", r"acl(File|Strict)", "advertisedAddress"),
                _one_of("brokerConfigPath", "configBlackList", "dedupMaxKeys", "gatherTimeMicros"),
                _one_of("listenHost"),
                _one_of(*SETTINGS_OF_5),
                _one_of("ha(AclEnable|AllowedSlaves|BeginAnew|CutMaxSize|MasterAddress|TlsMode)"),
                _one_of(r"diskSpace\w+", "logLevel", r"maxConnections\w*", r"maxRequests\w+"),
                _one_of("namesrvCredentialsFile", "readOnlyCommitLogStorePaths"),
                _one_of("rebalanceLockMaxLiveTime", "requestBurstMillis"),
                _one_of("updateNamesrvAddrEnable", "vipPortEnable"),
            ),
        ),
        Difference(
            "where each is installed",
            ours=(_one_of("rocketmqHome"),),
            java=(_one_of("rocketmqHome"),),
        ),
        Difference(
            "the Java broker shows the length that it calculates, also where it needs none",
            ours=(_one_of("bitMapLengthConsumeQueueExt"),),
            java=(_one_of("bitMapLengthConsumeQueueExt"),),
        ),
    ),
    "getNamesrvConfig": (
        Difference(
            "settings that have no effect in Kerolox are not shown",
            java=(_one_of(*UNUSED_BY_NAME_SERVER),),
        ),
        Difference(
            "settings of Kerolox's own, and those that are a system property or null in Java",
            ours=(
                _one_of(r"tls\..*", r"metrics?[A-Z]\w+", "configBlackList", "listenHost"),
                _one_of("logLevel", r"maxConnections\w*", r"maxRequests\w+"),
                _one_of("requestBurstMillis", "restrictReaders", r"writer\w+"),
                _one_of("enableControllerInNamesrv"),
            ),
        ),
        Difference(
            "where each has its files",
            ours=(_one_of("kvConfigPath", "configStorePath"),),
            java=(_one_of("kvConfigPath", "configStorePath"),),
        ),
    ),
    "getAclConfig": (
        Difference("no secret is told", ours=(r"secretKey :$",), java=(r"secretKey : .",)),
    ),
    "deleteAclConfig": (
        Difference(
            "the remark says why",
            ours=("deleted failed: there is no such account",),
            java=(r"deleted failed\.",),
        ),
    ),
    "statsAll": (
        Difference(
            "what the broker itself writes counts",
            ours=("^OFFSET_MOVED_EVENT",),
            java=("^OFFSET_MOVED_EVENT",),
        ),
    ),
}
"""Command → its differences. A line is printed by the one alone, or otherwise by each."""
