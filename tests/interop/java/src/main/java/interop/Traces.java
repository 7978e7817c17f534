package interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Clients that write message traces, and clients in a namespace: Traces NAMESRV.
 * Prints the id of each message: "message", its kind, its id, joined by tabs.
 */
public class Traces {
    private static final int WAIT_SECONDS_MAX = 30;

    private static String namesrv;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        // Its trace topic does not exist yet: closing at once would lose the trace.
        DefaultMQProducer custom = new DefaultMQProducer("java-custom", true, "JavaTraces");
        custom.setNamesrvAddr(namesrv);
        custom.start();
        sent("custom", custom.send(message("JavaTraced2")));
        sent("plain", send(new DefaultMQProducer("java-traced", true), "JavaTraced"));
        transaction();
        consume();
        awaitTopic(custom, "JavaTraces");
        sent("namespace", send(new DefaultMQProducer("java-ns", "java-tenant"), "JavaTenant"));
        System.exit(0);
    }

    private static void sent(String kind, SendResult result) {
        System.out.println("message\t" + kind + "\t" + result.getMsgId());
    }

    private static Message message(String topic) {
        return new Message(topic, "tag", "key1 key2", "traced".getBytes(StandardCharsets.UTF_8));
    }

    /** Closing sends the traces that are left. */
    private static SendResult send(DefaultMQProducer producer, String topic) throws Exception {
        producer.setNamesrvAddr(namesrv);
        producer.start();
        SendResult result = producer.send(message(topic));
        producer.shutdown();
        return result;
    }

    private static void transaction() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(null, "java-tx", null, true, null);
        producer.setNamesrvAddr(namesrv);
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
        sent("transaction", producer.sendMessageInTransaction(message("JavaTraced3"), null));
        producer.shutdown();
    }

    private static void awaitTopic(DefaultMQProducer producer, String topic) throws Exception {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(WAIT_SECONDS_MAX);
        while (true) {
            try {
                producer.fetchPublishMessageQueues(topic);
                return;
            } catch (MQClientException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                Thread.sleep(20);
            }
        }
    }

    private static void consume() throws Exception {
        CountDownLatch got = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-traced-group", true);
        consumer.setNamesrvAddr(namesrv);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("JavaTraced", "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            got.countDown();
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        if (!got.await(WAIT_SECONDS_MAX, TimeUnit.SECONDS)) {
            throw new IllegalStateException("nothing came within " + WAIT_SECONDS_MAX + " s");
        }
        consumer.shutdown();
    }
}
