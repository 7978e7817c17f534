package versions;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * What a client of any version does with a broker: Scenarios NAMESRV BROKER PREFIX SOURCE... All scenarios of the sources run at the same
 * time, each with a topic and groups of its own, whose names begin with the prefix. Prints one line per scenario: "scenario", its name,
 * "ok" or what went wrong, separated by tabs.
 *
 * Java has no conditional compilation: a source holds what came with one version, and is left out of the build for older ones. Types that
 * moved to another package with 5.x are not named.
 */
public class Scenarios {
    interface Scenario {
        void run() throws Exception;
    }

    interface Source {
        void add(Map<String, Scenario> scenarios);
    }

    static final int SECONDS_MAX = 60;
    static final int TIMEOUT_MS = 30_000;

    static String namesrv;
    static String broker;
    static String prefix;
    static DefaultMQProducer producer;
    static DefaultMQAdminExt admin;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        broker = args[1];
        prefix = args[2];
        producer = known(new DefaultMQProducer(prefix + "-producer"));
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        admin = known(new DefaultMQAdminExt(TIMEOUT_MS));
        admin.setInstanceName("admin");
        admin.start();
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        for (int i = 3; i < args.length; i++) {
            ((Source) Class.forName("versions." + args[i]).getDeclaredConstructor().newInstance()).add(scenarios);
        }
        connect();
        ExecutorService threads = Executors.newFixedThreadPool(scenarios.size());
        List<Future<?>> running = new ArrayList<>();
        scenarios.forEach((name, scenario) -> running.add(threads.submit(() -> run(name, scenario))));
        for (Future<?> each : running) {
            each.get(2 * SECONDS_MAX, TimeUnit.SECONDS);
        }
        System.exit(0);
    }

    /**
     * Opens the connections that the scenarios share before they begin. Before 4.6.0, of several threads that lack the same connection a later
     * one closes what an earlier one has just opened (apache/rocketmq#1108): a write fails, and what waits for its answer does so in vain, with
     * 4.2.0 until its time-out.
     */
    private static void connect() throws Exception {
        // a client waits for a connection for 3 s only
        eventually(() -> topic("First") != null, "the first connections");
        String topic = topic("First");
        put(topic, "first", 4);
        arrives(topic, "first", range("first", 0, 4));
    }

    private static void run(String name, Scenario scenario) {
        String outcome = "ok";
        long start = System.currentTimeMillis();
        try {
            scenario.run();
        } catch (Throwable e) {
            outcome = String.valueOf(e).replace('\n', ' ').replace('\t', ' ');
            e.printStackTrace();
        }
        System.err.println(name + " took " + (System.currentTimeMillis() - start) + " ms");
        System.out.println("scenario\t" + name + "\t" + outcome);
    }

    // -- what scenarios share -----------------------------------------------------------------------------------------
    static void check(boolean fact, String what) {
        if (!fact) {
            throw new IllegalStateException(what);
        }
    }

    static void eventually(Callable<Boolean> fact, String what) throws Exception {
        eventually(fact, () -> what);
    }

    /** Waits until the fact is there; when it never comes, what is so then is told, and what was thrown. */
    static void eventually(Callable<Boolean> fact, Supplier<String> what) throws Exception {
        long deadline = System.currentTimeMillis() + SECONDS_MAX * 1000;
        Exception last = null;
        while (true) {
            try {
                if (fact.call()) {
                    return;
                }
            } catch (Exception e) {
                last = e;
            }
            if (System.currentTimeMillis() >= deadline) {
                throw new IllegalStateException(what.get() + ", at last: " + last);
            }
            Thread.sleep(20);
        }
    }

    static <T extends ClientConfig> T known(T client) {
        client.setNamesrvAddr(namesrv);
        client.setHeartbeatBrokerInterval(1_000);
        return client;
    }

    /** A topic of this scenario, with four queues. */
    static String topic(String name) throws Exception {
        return topic(name, 4);
    }

    static String topic(String name, int queues) throws Exception {
        String topic = prefix + "-" + name;
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic, queues, queues, 6));
        eventually(() -> producer.fetchPublishMessageQueues(topic).size() == queues, "the route of " + topic);
        return topic;
    }

    static String group(String name) {
        return prefix + "-" + name;
    }

    static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    static Set<String> texts(Collection<? extends Message> messages) {
        Set<String> texts = new HashSet<>();
        synchronized (messages) {
            messages.forEach(message -> texts.add(text(message)));
        }
        return texts;
    }

    static Set<String> range(String name, int from, int to) {
        Set<String> texts = new HashSet<>();
        for (int i = from; i < to; i++) {
            texts.add(name + i);
        }
        return texts;
    }

    static SendResult put(Message message) throws Exception {
        SendResult result = producer.send(message);
        check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
        return result;
    }

    /** Sends bodies name0, name1 ... in turn to all queues of a topic. */
    static void put(String topic, String name, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            put(new Message(topic, bytes(name + i)));
        }
    }

    static DefaultMQPushConsumer consumer(String name) {
        DefaultMQPushConsumer consumer = known(new DefaultMQPushConsumer(group(name)));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
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

    static void saw(List<MessageExt> seen, Set<String> wanted) throws Exception {
        eventually(() -> texts(seen).containsAll(wanted), () -> "saw " + seen.size() + " of " + wanted.size());
        check(texts(seen).equals(wanted), "saw " + texts(seen));
    }

    /** A group new to a topic sees exactly these bodies. */
    static void arrives(String topic, String name, Set<String> bodies) throws Exception {
        DefaultMQPushConsumer consumer = consumer(name);
        consumer.subscribe(topic, "*");
        saw(collect(consumer), bodies);
        consumer.shutdown();
    }
}
