"""Keys of a RocketMQ ``broker.conf`` that have no effect here, with the reason of each.

They are those of ``BrokerConfig``, ``MessageStoreConfig``, ``NettyServerConfig`` and
``NettyClientConfig`` of 4.x, and those that examples of all ages carry although RocketMQ 4.9 does
not read them either.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from kerolox.text import printable

_log = logging.getLogger(__name__)

_REASONS = {
    "one event loop does the work of RocketMQ's thread pools": """
        sendMessageThreadPoolNums putMessageFutureThreadPoolNums pullMessageThreadPoolNums
        processReplyMessageThreadPoolNums queryMessageThreadPoolNums adminBrokerThreadPoolNums
        clientManageThreadPoolNums consumerManageThreadPoolNums heartbeatThreadPoolNums
        endTransactionThreadPoolNums serverWorkerThreads serverCallbackExecutorThreads
        serverSelectorThreads clientWorkerThreads clientCallbackExecutorThreads
        pullMessageFutureThreadPoolNums litePullMessageThreadPoolNums
    """,
    "no request waits in a queue": """
        putThreadPoolQueueCapacity clientManagerThreadPoolQueueCapacity
        consumerManagerThreadPoolQueueCapacity heartbeatThreadPoolQueueCapacity
        brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue
        waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue
        serverOnewaySemaphoreValue serverAsyncSemaphoreValue clientOnewaySemaphoreValue
        clientAsyncSemaphoreValue highSpeedMode
    """,
    "sockets and buffers are set by themselves": """
        serverSocketSndBufSize serverSocketRcvBufSize writeBufferHighWaterMark
        writeBufferLowWaterMark serverPooledByteBufAllocatorEnable useEpollNativeSelector
        connectTimeoutMillis channelNotActiveInterval clientChannelMaxIdleTimeSeconds
        clientSocketSndBufSize clientSocketRcvBufSize clientPooledByteBufAllocatorEnable
        clientCloseSocketIfTimeout transferMsgByHeap
    """,
    "RocketMQ 4.9 has no use for it": """
        duplicationEnable
    """,
    "DLedger is not supported": """
        storePathDLedgerCommitLog dLegerGroup dLegerPeers dLegerSelfId preferredLeaderId
        isEnableBatchPush
    """,
    "it goes with storePathRootDir": """
        storePathConsumeQueue storePathIndex storeCheckpoint abortFile
        storePathEpochFile storePathBrokerIdentity
    """,
    "the spelling before 4.6, which RocketMQ 4.9 does not read either; write mappedFileSize...": """
        mapedFileSizeCommitLog mapedFileSizeConsumeQueue mapedFileSizeConsumeQueueExt
    """,
    "RocketMQ 4.9 does not read it either": """
        checkTransactionMessageEnable destroyMapedFileInterval brokerEnableProxy
        dynamicTopicEnabled brokerWeight
    """,
    "addresses of name servers are given by namesrvAddr": """
        fetchNamesrvAddrByAddressServer rmqAddressServerDomain rmqAddressServerSubGroup
        namesrvDomain namesrvDomainSubgroup
    """,
    "it is for RocketMQ 5": """
        litePullMessageEnable enableSlaveActingMaster
        enableRemoteEscape enableSingleTopicRegister enableSplitRegistration
        transactionCheckMaxTimeInMs autoMessageVersionOnTopicLen
        enableNameServerAddressResolve enableBatchPush totalReplicas
        enableAutoInSyncReplicas fetchControllerAddrByDnsLookup
    """,
    "what pops have out is in memory, and no record is written for it": """
        reviveQueueNum reviveInterval reviveMaxSlow reviveScanTime reviveAckWaitMs
        enablePopBufferMerge enablePopBatchAck enablePopMessageThreshold enablePopLog
        popCkStayBufferTime popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize
        popReviveMaxReturnSizePerRead popReviveMaxAttemptTimes skipWhenCKRePutReachMaxTimes
        appendAckAsync appendCkAsync enableSkipLongAwaitingAck popPollingMapSize
        popLongPollingForceNotifyInterval enableNotifyAfterPopOrderLockRelease
        popConsumerKVServiceInit popConsumerKVServiceEnable popConsumerKVServiceLog
    """,
    "one task does all of the timer's work, and loses nothing": """
        timerGetMessageThreadNum timerPutMessageThreadNum timerEnableDisruptor
        timerEnableCheckMetrics timerCheckMetricsWhen timerSkipUnknownError timerWarmEnable
        timerEnableRetryUntilSuccess timerMetricSmallThreshold timerProgressLogIntervalMs
        timerInterceptDelayLevel
    """,
    "there is nothing that it could change": """
        messageStorePlugIn filterServerNums flushConsumerOffsetHistoryInterval
        commercialEnable commercialTimerCount commercialTransCount commercialBigCount
        commercialBaseCount maxDelayTime forceRegister isolateLogEnable
        destroyMapedFileIntervalForcibly putMsgIndexHightWater debugLockEnable
        enableScheduleAsyncDeliver scheduleAsyncDeliverMaxPendingLimit
        scheduleAsyncDeliverMaxResendNum2Blocked
    """,
}

UNUSED_KEYS: Mapping[str, str] = {
    key: reason for reason, keys in _REASONS.items() for key in keys.split()
}
"""Key → why it has no effect."""

_PLACES = {
    "storePathConsumeQueue": "consumequeue",
    "storePathIndex": "index",
    "storeCheckpoint": "checkpoint",
    "abortFile": "abort",
}


def warn_of_other_places(values: Mapping[str, str], root: Path, where: str) -> None:
    """Say where queues and index lie when a file names another place for them."""
    for key, name in _PLACES.items():
        if key in values and Path(values[key].strip()).expanduser() != root / name:
            _log.warning(
                "%s: %s=%s is not where it is: it is %s, as storePathRootDir says",
                where,
                key,
                printable(values[key]),
                root / name,
            )
