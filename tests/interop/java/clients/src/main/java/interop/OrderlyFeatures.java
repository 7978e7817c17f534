package interop;

import static interop.Scenario.SECONDS_MAX;
import static interop.Scenario.all;
import static interop.Scenario.bytes;
import static interop.Scenario.check;
import static interop.Scenario.consumer;
import static interop.Scenario.eventually;
import static interop.Scenario.namesrv;
import static interop.Scenario.producer;
import static interop.Scenario.puller;
import static interop.Scenario.put;
import static interop.Scenario.send;
import static interop.Scenario.text;
import static interop.Scenario.texts;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Scenarios of ordered consumption: see {@link Features}. */
final class OrderlyFeatures {
    private OrderlyFeatures() {
    }

    /** What the members of a group took of messages "queue:number": all of each queue, in order. */
    private static final class InOrder {
        private final int[] last = {-1, -1, -1, -1};
        private final List<String> wrong = new ArrayList<>();
        private int done;

        synchronized void take(String member, String body) {
            String[] parts = body.split(":");
            int queue = Integer.parseInt(parts[0]);
            int number = Integer.parseInt(parts[1]);
            // one that was being handled when its member left comes again; none may be left out
            if (number > last[queue] + 1) {
                wrong.add(member + ": " + number + " after " + last[queue] + " in queue " + queue);
            }
            if (number == last[queue] + 1) {
                last[queue] = number;
                done++;
            }
        }

        synchronized int done() {
            return done;
        }

        synchronized void check() {
            Scenario.check(wrong.isEmpty(), wrong.toString());
        }
    }

    static void orderlyRetry() throws Exception {
        DefaultMQPushConsumer consumer = consumer("feat-order-retry");
        for (int i = 0; i < 6; i++) {
            Message each = new Message("FeatOrderRetry", bytes("o" + i));
            send(() -> producer.send(each, (queues, message, arg) -> queues.get(0), null));
        }
        consumer.subscribe("FeatOrderRetry", "*");
        consumer.setMaxReconsumeTimes(2);
        List<String> seen = Collections.synchronizedList(new ArrayList<>());
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            context.setSuspendCurrentQueueTimeMillis(10);
            String body = text(messages.get(0));
            seen.add(body);
            boolean fails = body.equals("o1") && Collections.frequency(seen, body) < 3 || body.equals("o3");
            return fails ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        DefaultMQPullConsumer reader = puller("feat-order-reader");
        // what keeps failing goes to the dead letters, by a send to the retry topic, and the others go on
        eventually((Callable<Boolean>) () -> texts(all(reader, "%DLQ%feat-order-retry")).contains("o3"), "the dead letter");
        eventually(() -> seen.contains("o5"), "saw " + seen);
        consumer.shutdown();
        reader.shutdown();
        check(seen.equals(Arrays.asList("o0", "o1", "o1", "o1", "o2", "o3", "o3", "o3", "o4", "o5")), seen.toString());
    }

    static void orderlyJoinsAndLeaves() throws Exception {
        int count = 400;
        InOrder inOrder = new InOrder();
        put(new Message("FeatOrder", bytes("warm:0")));
        Set<String> members = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            DefaultMQPushConsumer consumer = consumer("feat-order");
            String member = "member" + i;
            consumer.subscribe("FeatOrder", "T");
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                for (MessageExt message : messages) {
                    inOrder.take(member, text(message));
                    members.add(member);
                }
                return ConsumeOrderlyStatus.SUCCESS;
            });
            consumers.add(consumer);
        }
        consumers.get(0).start();
        for (int i = 0; i < count; i++) {
            producer.send(new Message("FeatOrder", "T", bytes(i % 4 + ":" + i / 4)), (queues, message, arg) -> queues.get((int) arg), i % 4);
            if (i == 50) {
                eventually(() -> members.contains("member0"), "the first member got nothing");
                consumers.get(1).start();
            } else if (i == 150) {
                consumers.get(2).start();
            } else if (i == 250) {
                consumers.get(0).shutdown();
            }
            Thread.sleep(2);
        }
        eventually(() -> inOrder.done() == count, "consumed " + inOrder.done() + " of " + count);
        consumers.get(1).shutdown();
        consumers.get(2).shutdown();
        inOrder.check();
        check(members.size() > 1, "only " + members + " got something");
    }

    /** A member of a group that is killed: the others go on where it was, in order, once its locks are over. */
    static void orderlyKill() throws Exception {
        InOrder inOrder = new InOrder();
        AtomicInteger byVictim = new AtomicInteger();
        put(new Message("FeatKill", "other", bytes("the topic exists")));
        Process victim = new ProcessBuilder(ProcessHandle.current().info().command().get(), "-Xmx128m", "-XX:TieredStopAtLevel=1",
            "-Drocketmq.client.logLevel=ERROR", "-Dcom.rocketmq.remoting.client.closeSocketIfTimeout=false", "-Drocketmq.client.rebalance.waitInterval=1000", "-Drocketmq.client.rebalance.lockInterval=500",
            "-cp", System.getProperty("java.class.path"), "interop.Features", namesrv, "victim").redirectError(ProcessBuilder.Redirect.DISCARD).start();
        Thread reader = new Thread(() -> new BufferedReader(new InputStreamReader(victim.getInputStream())).lines().forEach(line -> {
            inOrder.take("victim", line);
            byVictim.incrementAndGet();
        }));
        reader.start();
        DefaultMQPushConsumer survivor = consumer("feat-kill");
        survivor.subscribe("FeatKill", "T");
        survivor.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> inOrder.take("survivor", text(message)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        int count = 0;
        try {
            long deadline = System.currentTimeMillis() + SECONDS_MAX * 1000;
            while (byVictim.get() < 20) {
                check(System.currentTimeMillis() < deadline, "the victim got " + byVictim.get());
                sendInOrder(count++);
            }
            survivor.start();
            while (inOrder.done() - byVictim.get() < 20) {
                check(System.currentTimeMillis() < deadline, "the survivor got " + (inOrder.done() - byVictim.get()));
                sendInOrder(count++);
            }
        } finally {
            victim.destroyForcibly();
        }
        reader.join(SECONDS_MAX * 1000);
        for (int i = 0; i < 40; i++) {
            sendInOrder(count++);
        }
        int all = count;
        eventually(() -> inOrder.done() == all, "consumed " + inOrder.done() + " of " + all);
        survivor.shutdown();
        inOrder.check();
    }

    private static void sendInOrder(int number) throws Exception {
        producer.send(new Message("FeatKill", "T", bytes(number % 4 + ":" + number / 4)), (queues, message, arg) -> queues.get((int) arg), number % 4);
        Thread.sleep(10);
    }

    /** The process that is killed: says what it consumes, before the broker knows. */
    static void beKilled() throws Exception {
        DefaultMQPushConsumer consumer = consumer("feat-kill");
        consumer.subscribe("FeatKill", "T");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> System.out.println(text(message)));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        new CountDownLatch(1).await();
    }
}
