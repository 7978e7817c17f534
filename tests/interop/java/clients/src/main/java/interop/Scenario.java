package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.function.BooleanSupplier;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What the scenarios of {@link Features} share: clients that wait for a slow broker, sends, and waits for a fact. */
final class Scenario {
    static final int SECONDS_MAX = 60;
    /** A broker on a busy machine may be silent for seconds. */
    static final int TIMEOUT_MS = 30_000;
    /** Longer than the sends of one burst take: the broker takes the message nearest to a time. */
    static final int FAR_MS = 4_000;

    static String namesrv;
    static DefaultMQProducer producer;
    static DefaultMQAdminExt admin;

    private Scenario() {
    }

    static void check(boolean fact, String what) {
        if (!fact) {
            throw new IllegalStateException(what);
        }
    }

    static void eventually(BooleanSupplier fact, String what) throws InterruptedException {
        long deadline = System.currentTimeMillis() + SECONDS_MAX * 1000;
        while (!fact.getAsBoolean()) {
            check(System.currentTimeMillis() < deadline, what);
            Thread.sleep(10);
        }
    }

    /** As above; what the broker refuses meanwhile does not count. */
    static void eventually(Callable<Boolean> fact, String what) throws Exception {
        Exception[] last = {null};
        try {
            eventually((BooleanSupplier) () -> {
                try {
                    return fact.call();
                } catch (Exception e) {
                    last[0] = e;
                    return false;
                }
            }, what);
        } catch (IllegalStateException e) {
            throw new IllegalStateException(what + ", at last: " + last[0], e);
        }
    }

    /** A client that waits for slow answers, and is online again soon. */
    static <T extends ClientConfig> T patient(T client) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(TIMEOUT_MS);
        client.setHeartbeatBrokerInterval(1_000);
        return client;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    /** One scenario asks for a route at a time; the others wait for 3 s only, and may have to send again. */
    static SendResult send(Callable<SendResult> sending) throws Exception {
        long deadline = System.currentTimeMillis() + SECONDS_MAX * 1000;
        while (true) {
            try {
                SendResult result = sending.call();
                check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
                return result;
            } catch (MQClientException e) {
                if (!e.getMessage().contains("No route info") || System.currentTimeMillis() > deadline) {
                    throw e;
                }
            }
        }
    }

    static SendResult put(Message message) throws Exception {
        return send(() -> producer.send(message));
    }

    /** Sends bodies prefix0, prefix1 ... in turn to all queues of a topic. */
    static Set<String> put(String topic, String prefix, int count) throws Exception {
        Set<String> bodies = new HashSet<>();
        for (int i = 0; i < count; i++) {
            put(new Message(topic, bytes(prefix + i)));
            bodies.add(prefix + i);
        }
        return bodies;
    }

    static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = patient(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // the retry topic of a new group is found with the next poll
        consumer.setPollNameServerInterval(500);
        // a message counts as consumed only after its listener returned: who leaves waits for that
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);
        return consumer;
    }

    /**
     * Sends prefix0 to prefix7 in turn to all four queues of a topic that has others, adds them to the bodies, and gives a time right before
     * all of them, to which they are nearer than the others.
     */
    static long putLater(String topic, String prefix, Set<String> bodies) throws Exception {
        Thread.sleep(FAR_MS);
        SendResult first = put(new Message(topic, bytes(prefix + 0)));
        bodies.add(prefix + 0);
        for (int i = 1; i < 8; i++) {
            put(new Message(topic, bytes(prefix + i)));
            bodies.add(prefix + i);
        }
        return storedAt(first) - 1;
    }

    static long storedAt(SendResult sent) throws Exception {
        return admin.viewMessage(sent.getOffsetMsgId()).getStoreTimestamp();
    }

    /** Starts a consumer that keeps what it sees, in the order in which it comes. */
    static List<MessageExt> collect(DefaultMQPushConsumer consumer) throws Exception {
        List<MessageExt> seen = Collections.synchronizedList(new ArrayList<>());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return seen;
    }

    static Set<String> texts(Collection<MessageExt> messages) {
        Set<String> texts = new HashSet<>();
        synchronized (messages) {
            messages.forEach(message -> texts.add(text(message)));
        }
        return texts;
    }

    static DefaultMQPullConsumer puller(String group) throws MQClientException {
        DefaultMQPullConsumer consumer = patient(new DefaultMQPullConsumer(group));
        consumer.setConsumerPullTimeoutMillis(TIMEOUT_MS);
        consumer.start();
        return consumer;
    }

    /** All messages of a topic that may be read. */
    static List<MessageExt> all(DefaultMQPullConsumer consumer, String topic) throws Exception {
        List<MessageExt> found = new ArrayList<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            long offset = consumer.minOffset(queue);
            for (PullResult result = null; result == null || result.getPullStatus() == PullStatus.FOUND; offset = result.getNextBeginOffset()) {
                result = consumer.pull(queue, "*", offset, 32);
                if (result.getPullStatus() == PullStatus.FOUND) {
                    found.addAll(result.getMsgFoundList());
                }
            }
        }
        return found;
    }
}
