package versions;

import static versions.Scenarios.TIMEOUT_MS;
import static versions.Scenarios.admin;
import static versions.Scenarios.arrives;
import static versions.Scenarios.broker;
import static versions.Scenarios.bytes;
import static versions.Scenarios.check;
import static versions.Scenarios.consumer;
import static versions.Scenarios.eventually;
import static versions.Scenarios.group;
import static versions.Scenarios.known;
import static versions.Scenarios.producer;
import static versions.Scenarios.put;
import static versions.Scenarios.range;
import static versions.Scenarios.saw;
import static versions.Scenarios.text;
import static versions.Scenarios.topic;

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.impl.MQClientAPIImpl;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;

/** What tools of 5.x ask first, a group that is asked for, queues that the broker shares, the id of a transaction. */
public class Since5 implements Scenarios.Source {
    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("settings", Since5::settings);
        scenarios.put("asked_group", Since5::askedGroup);
        scenarios.put("server_rebalance", Since5::serverRebalance);
        scenarios.put("server_pops", Since5::serverPops);
        scenarios.put("transaction_id", Since5::transactionId);
    }

    /** A proxy tells a broker of its clients' groups by this question alone. */
    private static void askedGroup() throws Exception {
        String group = group("asked");
        MQClientAPIImpl client = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        String name = client.getSubscriptionGroupConfig(broker, group, TIMEOUT_MS).getGroupName();
        check(name.equals(group), "a group that is made");
        check(admin.examineSubscriptionGroupConfig(broker, group) != null, "the group among all");
    }

    /** The broker says which queues a member reads, of the retry topic too. */
    private static void serverRebalance() throws Exception {
        String topic = topic("ServerRebalance", 4);
        put(topic, "m", 8);
        DefaultMQPushConsumer one = consumer("server-rebalance");
        one.setInstanceName("one");
        DefaultMQPushConsumer two = consumer("server-rebalance");
        two.setInstanceName("two");
        List<MessageExt> seen = Collections.synchronizedList(new ArrayList<>());
        List<DefaultMQPushConsumer> members = List.of(one, two);
        for (DefaultMQPushConsumer each : members) {
            each.setClientRebalance(false);
            each.subscribe(topic, "*");
            each.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                seen.addAll(messages);
                context.setDelayLevelWhenNextConsume(1);
                boolean comesAgain = messages.get(0).getReconsumeTimes() == 0 && text(messages.get(0)).equals("m0");
                return comesAgain ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            each.start();
        }
        saw(seen, range("m", 0, 8));
        eventually(() -> seen.stream().anyMatch(each -> each.getReconsumeTimes() == 1), "the retry");
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** The broker says that members pop; they acknowledge message by message. */
    private static void serverPops() throws Exception {
        String topic = topic("ServerPops", 4);
        put(topic, "m", 8);
        MQClientAPIImpl client = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl();
        client.setMessageRequestMode(broker, topic, group("server-pops"), MessageRequestMode.POP, -1, TIMEOUT_MS);
        DefaultMQPushConsumer one = consumer("server-pops");
        one.setInstanceName("one");
        DefaultMQPushConsumer two = consumer("server-pops");
        two.setInstanceName("two");
        List<MessageExt> seen = Collections.synchronizedList(new ArrayList<>());
        List<DefaultMQPushConsumer> members = List.of(one, two);
        for (DefaultMQPushConsumer each : members) {
            each.setClientRebalance(false);
            each.subscribe(topic, "*");
            each.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                seen.addAll(messages);
                boolean comesAgain = messages.get(0).getReconsumeTimes() == 0 && text(messages.get(0)).equals("m0");
                return comesAgain ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            each.start();
        }
        saw(seen, range("m", 0, 8));
        check(seen.stream().allMatch(each -> each.getProperty("POP_CK") != null), "receipts");
        eventually(() -> seen.stream().anyMatch(each -> each.getReconsumeTimes() == 1), "the retry");
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** Clients by gRPC end a transaction by it. */
    private static void transactionId() throws Exception {
        String topic = topic("TransactionId", 1);
        TransactionMQProducer producer = known(new TransactionMQProducer(group("transaction-id")));
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        SendResult sent = producer.sendMessageInTransaction(new Message(topic, bytes("one")), null);
        check(sent.getMsgId().equals(sent.getTransactionId()), sent.toString());
        arrives(topic, "transaction-id-reader", Set.of("one"));
        producer.shutdown();
    }

    private static void settings() throws Exception {
        String topic = topic("Settings", 3);
        check(admin.examineTopicConfig(broker, topic).getWriteQueueNums() == 3, "the settings of a topic");
        DefaultMQPushConsumer consumer = consumer("settings");
        consumer.subscribe(topic, "*");
        Scenarios.collect(consumer);
        Scenarios.eventually(() -> admin.examineSubscriptionGroupConfig(broker, group("settings")).getRetryMaxTimes() == 16,
            "the settings of a group");
        consumer.shutdown();
    }
}
