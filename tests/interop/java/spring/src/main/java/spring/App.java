package spring;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.spring.annotation.ConsumeMode;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.annotation.RocketMQTransactionListener;
import org.apache.rocketmq.spring.annotation.SelectorType;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionListener;
import org.apache.rocketmq.spring.core.RocketMQLocalTransactionState;
import org.apache.rocketmq.spring.core.RocketMQReplyListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.messaging.Message;
import org.springframework.messaging.MessagingException;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * What an application with the starter does: App --rocketmq.name-server=ADDRESS --app.prefix=PREFIX. Its topics exist already. All
 * scenarios run at the same time. Prints one line per scenario: "scenario", its name, "ok" or what went wrong, separated by tabs.
 */
@SpringBootApplication
public class App {
    interface Scenario {
        void run() throws Exception;
    }

    private static final int SECONDS_MAX = 60;
    private static final int TIMEOUT_MS = 30_000;
    private static final int MANY = 12;

    /** What listeners saw, by the end of their topic's name. */
    private static final Map<String, List<String>> SEEN = new ConcurrentHashMap<>();

    private static RocketMQTemplate template;
    private static String prefix;

    // -- the application's parts --------------------------------------------------------------------------------------
    private static void note(String topic, String body) {
        SEEN.computeIfAbsent(topic, name -> Collections.synchronizedList(new ArrayList<>())).add(body);
    }

    @Component
    @RocketMQMessageListener(topic = "${app.prefix}-Plain", consumerGroup = "${app.prefix}-plain")
    public static class Plain implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            note("Plain", body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "${app.prefix}-Tags", consumerGroup = "${app.prefix}-tags", selectorExpression = "A || B")
    public static class Tags implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            note("Tags", body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "${app.prefix}-Sql", consumerGroup = "${app.prefix}-sql",
        selectorType = SelectorType.SQL92, selectorExpression = "price > 8")
    public static class Sql implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            note("Sql", body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "${app.prefix}-Orderly", consumerGroup = "${app.prefix}-orderly", consumeMode = ConsumeMode.ORDERLY)
    public static class Orderly implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            note("Orderly", body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "${app.prefix}-Tran", consumerGroup = "${app.prefix}-tran")
    public static class Tran implements RocketMQListener<String> {
        @Override
        public void onMessage(String body) {
            note("Tran", body);
        }
    }

    @Component
    @RocketMQMessageListener(topic = "${app.prefix}-Request", consumerGroup = "${app.prefix}-request")
    public static class Server implements RocketMQReplyListener<String, String> {
        @Override
        public String onMessage(String body) {
            note("Request", body);
            return "heard " + body;
        }
    }

    @RocketMQTransactionListener
    public static class Decisions implements RocketMQLocalTransactionListener {
        @Override
        public RocketMQLocalTransactionState executeLocalTransaction(Message message, Object arg) {
            return "commit".equals(arg) ? RocketMQLocalTransactionState.COMMIT
                : "rollback".equals(arg) ? RocketMQLocalTransactionState.ROLLBACK : RocketMQLocalTransactionState.UNKNOWN;
        }

        @Override
        public RocketMQLocalTransactionState checkLocalTransaction(Message message) {
            // a slow machine may be asked about a message that was decided on
            String body = new String((byte[]) message.getPayload(), StandardCharsets.UTF_8);
            return body.equals("rollback") ? RocketMQLocalTransactionState.ROLLBACK : RocketMQLocalTransactionState.COMMIT;
        }
    }

    // -- the scenarios ------------------------------------------------------------------------------------------------
    public static void main(String[] args) throws Exception {
        template = SpringApplication.run(App.class, args).getBean(RocketMQTemplate.class);
        for (String arg : args) {
            prefix = arg.startsWith("--app.prefix=") ? arg.substring("--app.prefix=".length()) : prefix;
        }
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("send", App::send);
        scenarios.put("tags", App::tags);
        scenarios.put("sql92", App::sql92);
        scenarios.put("orderly", App::orderly);
        scenarios.put("delay", App::delay);
        scenarios.put("receive", App::receive);
        scenarios.put("transactions", App::transactions);
        scenarios.put("request_reply", App::requestReply);
        ExecutorService threads = Executors.newFixedThreadPool(scenarios.size());
        List<Future<?>> running = new ArrayList<>();
        scenarios.forEach((name, scenario) -> running.add(threads.submit(() -> run(name, scenario))));
        for (Future<?> each : running) {
            each.get(2 * SECONDS_MAX, TimeUnit.SECONDS);
        }
        System.exit(0);
    }

    private static void run(String name, Scenario scenario) {
        String outcome = "ok";
        try {
            scenario.run();
        } catch (Throwable e) {
            outcome = String.valueOf(e).replace('\n', ' ').replace('\t', ' ');
            e.printStackTrace();
        }
        System.out.println("scenario\t" + name + "\t" + outcome);
    }

    private static void check(boolean fact, String what) {
        if (!fact) {
            throw new IllegalStateException(what);
        }
    }

    private static void eventually(Callable<Boolean> fact, String what) throws Exception {
        long deadline = System.currentTimeMillis() + SECONDS_MAX * 1000;
        while (!fact.call()) {
            check(System.currentTimeMillis() < deadline, what);
            Thread.sleep(20);
        }
    }

    private static List<String> seen(String topic) {
        List<String> seen = SEEN.get(topic);
        return seen == null ? Collections.emptyList() : Arrays.asList(seen.toArray(new String[0]));
    }

    private static void saw(String topic, Set<String> wanted) throws Exception {
        eventually(() -> seen(topic).containsAll(wanted), topic + " saw " + seen(topic));
        check(new HashSet<>(seen(topic)).equals(wanted), topic + " saw " + seen(topic));
    }

    private static void sent(SendResult result) {
        check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
    }

    private static void send() throws Exception {
        String topic = prefix + "-Plain";
        template.send(topic, MessageBuilder.withPayload("send").build());
        sent(template.syncSend(topic, "syncSend"));
        template.convertAndSend(topic, "convertAndSend");
        template.sendOneWay(topic, "sendOneWay");
        template.asyncSend(topic, "asyncSend", new SendCallback() {
            @Override
            public void onSuccess(SendResult result) {
            }

            @Override
            public void onException(Throwable error) {
                error.printStackTrace();
            }
        });
        sent(template.syncSend(topic, Arrays.asList(MessageBuilder.withPayload("batch0").build(), MessageBuilder.withPayload("batch1").build())));
        saw("Plain", new HashSet<>(Arrays.asList("send", "syncSend", "convertAndSend", "sendOneWay", "asyncSend", "batch0", "batch1")));
    }

    private static void tags() throws Exception {
        for (String tag : Arrays.asList("A", "B", "C")) {
            sent(template.syncSend(prefix + "-Tags:" + tag, "of " + tag));
        }
        saw("Tags", new HashSet<>(Arrays.asList("of A", "of B")));
    }

    private static void sql92() throws Exception {
        Set<String> wanted = new HashSet<>();
        for (int i = 0; i < MANY; i++) {
            sent(template.syncSend(prefix + "-Sql", MessageBuilder.withPayload("p" + i).setHeader("price", i).build()));
            if (i > 8) {
                wanted.add("p" + i);
            }
        }
        saw("Sql", wanted);
    }

    private static void orderly() throws Exception {
        List<String> wanted = new ArrayList<>();
        for (int i = 0; i < MANY; i++) {
            sent(template.syncSendOrderly(prefix + "-Orderly", "o" + i, "one key"));
            wanted.add("o" + i);
        }
        eventually(() -> seen("Orderly").size() >= MANY, "saw " + seen("Orderly"));
        check(seen("Orderly").equals(wanted), "out of order: " + seen("Orderly"));
    }

    private static void delay() throws Exception {
        sent(template.syncSend(prefix + "-Tags:A", MessageBuilder.withPayload("of A").build(), TIMEOUT_MS, 1));
        eventually(() -> seen("Tags").stream().filter("of A"::equals).count() == 2, "the delayed one");
    }

    private static void receive() throws Exception {
        Set<String> wanted = new HashSet<>();
        for (int i = 0; i < MANY; i++) {
            sent(template.syncSend(prefix + "-Receive", "r" + i));
            wanted.add("r" + i);
        }
        Set<String> got = new HashSet<>();
        eventually(() -> {
            got.addAll(template.receive(String.class, 200));
            return got.containsAll(wanted);
        }, "received " + got);
    }

    private static void transactions() throws Exception {
        for (String decision : Arrays.asList("commit", "rollback", "later")) {
            sent(template.sendMessageInTransaction(prefix + "-Tran", MessageBuilder.withPayload(decision).build(), decision));
        }
        saw("Tran", new HashSet<>(Arrays.asList("commit", "later")));
    }

    private static void requestReply() throws Exception {
        long begin = System.currentTimeMillis();
        try {
            String reply = template.sendAndReceive(prefix + "-Request", "hello", String.class, TIMEOUT_MS);
            check("heard hello".equals(reply), reply);
        } catch (MessagingException gaveUp) {
            // a client of 5.3.2 gives up, with every broker, as soon as its request is sent
            check(System.currentTimeMillis() - begin < TIMEOUT_MS, "no reply in time: " + gaveUp);
        }
        eventually(() -> seen("Request").contains("hello"), "the request");
    }
}
