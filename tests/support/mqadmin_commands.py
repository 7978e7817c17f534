"""The commands of mqadmin, as tests compare them with the jar, with guides and with methods."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = """
    updateTopic deleteTopic updateSubGroup deleteSubGroup updateBrokerConfig updateTopicPerm
    topicRoute topicStatus topicClusterList brokerStatus queryMsgById queryMsgByKey
    queryMsgByUniqueKey queryMsgByOffset queryMsgTraceById printMsg printMsgByQueue sendMsgStatus
    brokerConsumeStats producerConnection consumerConnection consumerProgress consumerStatus
    cloneGroupOffset producer clusterList topicList updateKvConfig deleteKvConfig wipeWritePerm
    addWritePerm resetOffsetByTime skipAccumulatedMessage updateOrderConf cleanExpiredCQ
    deleteExpiredCommitLog cleanUnusedTopic startMonitoring statsAll allocateMQ checkMsgSendRT
    clusterRT getNamesrvConfig updateNamesrvConfig getBrokerConfig getConsumerConfig queryCq
    sendMessage consumeMessage updateAclConfig deleteAclConfig clusterAclConfigVersion
    updateGlobalWhiteAddr exportMetadata exportConfigs exportMetrics
""".split()
"""What MQAdminStartup of 4.9.8 lists: ``tests/interop/parity`` asks it."""
