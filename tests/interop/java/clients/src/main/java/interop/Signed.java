package interop;

import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.RPCHook;

/**
 * Clients that sign their requests: Signed NAMESRV ACCESS_KEY SECRET_KEY TOPIC FORBIDDEN GROUP VIEWS.
 * VIEWS is "true" where a message can be asked for by the producer's id: a Java broker refuses that.
 * Prints "done" when all that the account may do was done, then "denied" and why, for a send to the topic that
 * is forbidden.
 */
public class Signed {
    private static final int TIMEOUT_MS = 30_000;

    private static String[] given;

    private static RPCHook hook() {
        return new AclClientRPCHook(new SessionCredentials(given[1], given[2]));
    }

    private static Message message(String topic, String text) {
        return new Message(topic, "signed", "key", text.getBytes(StandardCharsets.UTF_8));
    }

    public static void main(String[] args) throws Exception {
        given = args;
        String topic = args[3];
        DefaultMQProducer producer = new DefaultMQProducer(null, "java-signed", hook(), true, null);
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(args[5], hook(), new AllocateMessageQueueAveragely());
        Set<String> seen = consume(consumer, topic);
        SendResult one = producer.send(message(topic, "one"));
        producer.send(Arrays.asList(message(topic, "two"), message(topic, "three")));
        transaction(topic);
        Set<String> wanted = new HashSet<>(Arrays.asList("one", "two", "three", "four", "again"));
        Scenario.eventually(() -> seen.containsAll(wanted), "messages: " + seen);
        if (Boolean.parseBoolean(args[6])) {
            Callable<Boolean> isFound = () -> consumer.viewMessage(topic, one.getMsgId()).getMsgId() != null;
            Scenario.eventually(isFound, "a message");
        }
        System.out.println("done");
        try {
            producer.send(message(args[4], "forbidden"));
        } catch (MQClientException error) {
            MQBrokerException cause = (MQBrokerException) error.getCause();
            System.out.println("denied " + cause.getResponseCode() + " " + cause.getErrorMessage());
        }
        System.exit(0);
    }

    private static Set<String> consume(DefaultMQPushConsumer consumer, String topic) throws Exception {
        Set<String> seen = Collections.newSetFromMap(new ConcurrentHashMap<>());
        consumer.setNamesrvAddr(given[0]);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeMessageBatchMaxSize(1);
        consumer.subscribe(topic, "signed");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            String text = new String(message.getBody(), StandardCharsets.UTF_8);
            context.setDelayLevelWhenNextConsume(1);
            if (message.getReconsumeTimes() > 0) {
                seen.add("again");
            }
            return seen.add(text) && text.equals("one")
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return seen;
    }

    private static void transaction(String topic) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(null, "java-signed-tx", hook(), false, null);
        producer.setNamesrvAddr(given[0]);
        producer.setSendMsgTimeout(TIMEOUT_MS);
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
        producer.sendMessageInTransaction(message(topic, "four"), null);
    }
}
