package interop;

import java.nio.charset.StandardCharsets;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
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
 * Prints the id of each message: "message", its kind, its id, joined by tabs. The clients stay open
 * until standard input ends: a client that closes waits half a second for its traces, then loses them.
 */
public class Traces {
    private static final int WAIT_SECONDS_MAX = 60;
    private static final int TIMEOUT_MS = 30_000;

    private static String namesrv;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        sent("custom", send(new DefaultMQProducer("java-custom", true, "JavaTraces"), "JavaTraced2"));
        sent("plain", send(new DefaultMQProducer("java-traced", true), "JavaTraced"));
        transaction();
        consume();
        sent("namespace", send(new DefaultMQProducer("java-ns", "java-tenant"), "JavaTenant"));
        while (System.in.read() >= 0) {
            // The traces are being read.
        }
        System.exit(0);
    }

    private static void sent(String kind, SendResult result) {
        System.out.println("message\t" + kind + "\t" + result.getMsgId());
    }

    private static <T extends ClientConfig> T patient(T client) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(TIMEOUT_MS);
        return client;
    }

    private static Message message(String topic) {
        return new Message(topic, "tag", "key1 key2", "traced".getBytes(StandardCharsets.UTF_8));
    }

    private static SendResult send(DefaultMQProducer producer, String topic) throws Exception {
        patient(producer).setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        return producer.send(message(topic));
    }

    private static void transaction() throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(null, "java-tx", null, true, null);
        patient(producer).setSendMsgTimeout(TIMEOUT_MS);
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
    }

    private static void consume() throws Exception {
        CountDownLatch got = new CountDownLatch(1);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-traced-group", true);
        patient(consumer);
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
    }
}
