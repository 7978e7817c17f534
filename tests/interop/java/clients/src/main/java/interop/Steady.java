package interop;

import java.nio.charset.StandardCharsets;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a push consumer as they come, while brokers change behind them: Steady NAMESRV TOPIC. Sends until its input ends, prints
 * "sending" when the first messages came back, then waits until each message that was sent was seen, and prints "errors", "sent" and
 * "missing" with a number each, and the errors.
 */
public class Steady {
    private static final int SECONDS_MAX = 90;
    private static final int FIRST = 20;
    /** A name server or broker on a busy machine may be silent for seconds. */
    private static final int TIMEOUT_MS = 10_000;

    private static volatile boolean over;

    private Steady() {
    }

    public static void main(String[] args) throws Exception {
        Set<String> seen = Collections.newSetFromMap(new ConcurrentHashMap<>());
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("java-steady-readers");
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                seen.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("java-steady");
        producer.setNamesrvAddr(args[0]);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        Set<String> sent = Collections.newSetFromMap(new ConcurrentHashMap<>());
        List<String> errors = new CopyOnWriteArrayList<>();
        Thread[] senders = new Thread[2];
        for (int i = 0; i < senders.length; i++) {
            String name = "s" + i + "-";
            senders[i] = new Thread(() -> send(producer, args[1], name, sent, errors));
            senders[i].start();
        }
        await(() -> seen.size() >= FIRST);
        System.out.println("\nsending");
        System.out.flush();
        while (System.in.read() >= 0) {
            // Until it is closed.
        }
        over = true;
        for (Thread sender : senders) {
            sender.join();
        }
        await(() -> seen.containsAll(sent));
        Set<String> missing = new HashSet<>(sent);
        missing.removeAll(seen);
        System.out.println("\nerrors\t" + errors.size() + "\nsent\t" + sent.size() + "\nmissing\t" + missing.size());
        errors.forEach(System.out::println);
        System.out.flush();
        System.exit(0);
    }

    private static void send(DefaultMQProducer producer, String topic, String name, Set<String> sent, List<String> errors) {
        for (int i = 0; !over; i++) {
            try {
                producer.send(new Message(topic, (name + i).getBytes(StandardCharsets.UTF_8)));
                sent.add(name + i);
            } catch (Exception e) {
                errors.add(String.valueOf(e));
            }
        }
    }

    private static void await(java.util.function.BooleanSupplier condition) throws InterruptedException {
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(SECONDS_MAX);
        while (!condition.getAsBoolean() && System.nanoTime() < deadline) {
            Thread.sleep(10);
        }
    }
}
