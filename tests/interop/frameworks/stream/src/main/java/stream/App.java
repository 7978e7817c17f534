package stream;

import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.Consumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.MessageQueueSelector;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.common.message.MessageExt;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.cloud.stream.function.StreamBridge;
import org.springframework.context.annotation.Bean;
import org.springframework.messaging.Message;
import org.springframework.messaging.support.MessageBuilder;

/**
 * App NAME_SERVER PREFIX MESSAGES LINES: sends that many messages through each binding, and consumes them by functions, until it has
 * printed that many lines about them or its time is over. The topics PREFIX-Plain, -Orderly, -Failing, -Dead, -Transaction and -Delayed
 * exist already. The binder makes JSON of a body: a text in quotes.
 *
 * <p>Prints a line for each message that a function was given, "seen", the function, the body, the queue and the time in
 * milliseconds, one for each that is checked, "checked" and the body, and one for the one that is sent with a delay, "sent", the body and
 * the time, separated by tabs; "ended" is the last line.
 */
@SpringBootApplication(proxyBeanMethods = false)
public class App {
    private static final long SECONDS_MAX = 120;
    private static final String STREAM = "spring.cloud.stream.";
    private static final String[] FUNCTIONS = {"plain", "tagged", "selected", "orderly", "failing", "dead", "transaction", "delayed"};
    private static final String[] TOPICS = {"Plain", "Plain", "Plain", "Orderly", "Failing", "Dead", "Transaction", "Delayed"};
    private static final AtomicInteger LINES = new AtomicInteger();

    private static void print(String... words) {
        System.out.println(String.join("\t", words));
    }

    private static Consumer<Message<String>> printing(String function) {
        return message -> {
            Object queue = message.getHeaders().get("ROCKET_MQ_QUEUE_ID");
            print("seen", function, message.getPayload(), String.valueOf(queue), now());
            LINES.incrementAndGet();
        };
    }

    /** A body without its quotes. */
    private static String text(org.apache.rocketmq.common.message.Message message) {
        return new String(message.getBody()).replace("\"", "");
    }

    private static String now() {
        return String.valueOf(System.currentTimeMillis());
    }

    @Bean
    Consumer<Message<String>> plain() {
        return printing("plain");
    }

    @Bean
    Consumer<Message<String>> tagged() {
        return printing("tagged");
    }

    @Bean
    Consumer<Message<String>> selected() {
        return printing("selected");
    }

    @Bean
    Consumer<Message<String>> orderly() {
        return printing("orderly");
    }

    @Bean
    Consumer<Message<String>> failing() {
        AtomicInteger given = new AtomicInteger();
        return printing("failing").andThen(message -> {
            if (given.incrementAndGet() <= 2) {
                throw new IllegalStateException("not yet");
            }
        });
    }

    @Bean
    Consumer<Message<String>> dead() {
        return printing("dead").andThen(message -> {
            throw new IllegalStateException("never");
        });
    }

    @Bean
    Consumer<Message<String>> transaction() {
        return printing("transaction");
    }

    @Bean
    Consumer<Message<String>> delayed() {
        return printing("delayed");
    }

    @Bean
    MessageQueueSelector selector() {
        return (queues, message, argument) -> queues.get(Integer.parseInt(message.getProperty("shard")) % queues.size());
    }

    @Bean
    TransactionListener decisions() {
        return new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(org.apache.rocketmq.common.message.Message message, Object argument) {
                return switch (text(message)) {
                    case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                    case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                    default -> LocalTransactionState.UNKNOW;
                };
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                String body = text(message);
                print("checked", body);
                // A slow machine may be asked about a message that was decided on.
                return body.equals("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.COMMIT_MESSAGE;
            }
        };
    }

    private static Map<String, Object> settings(String server, String prefix) {
        Map<String, Object> settings = new LinkedHashMap<>();
        settings.put("spring.main.web-application-type", "none");
        settings.put("spring.main.banner-mode", "off");
        settings.put("logging.level.root", "WARN");
        settings.put("spring.cloud.function.definition", String.join(";", FUNCTIONS));
        String own = STREAM + "rocketmq.";
        settings.put(own + "binder.name-server", server);
        for (int i = 0; i < FUNCTIONS.length; i++) {
            String binding = STREAM + "bindings." + FUNCTIONS[i] + "-in-0.";
            settings.put(binding + "destination", prefix + "-" + TOPICS[i]);
            settings.put(binding + "group", prefix + "-" + FUNCTIONS[i]);
            // What fails is given back to the broker, and not tried again here.
            settings.put(binding + "consumer.max-attempts", 1);
            settings.put(STREAM + "bindings.out" + TOPICS[i] + ".destination", prefix + "-" + TOPICS[i]);
            settings.put(own + "bindings.out" + TOPICS[i] + ".producer.group", prefix + "-sender-" + TOPICS[i]);
            settings.put(own + "bindings.out" + TOPICS[i] + ".producer.sync", true);
        }
        settings.put(STREAM + "output-bindings", "out" + String.join(";out", Arrays.copyOfRange(TOPICS, 2, TOPICS.length)));
        settings.put(own + "bindings.tagged-in-0.consumer.subscription", "odd");
        settings.put(own + "bindings.selected-in-0.consumer.subscription", "sql:(price = '3')");
        settings.put(own + "bindings.orderly-in-0.consumer.push.orderly", true);
        // The binder has no setting of how often a message comes again; -1 is RocketMQ's way to have it not come again at all.
        settings.put(own + "bindings.dead-in-0.consumer.push.delay-level-when-next-consume", -1);
        settings.put(own + "bindings.outOrderly.producer.messageQueueSelector", "selector");
        settings.put(own + "bindings.outTransaction.producer.producerType", "Trans");
        settings.put(own + "bindings.outTransaction.producer.transactionListener", "decisions");
        return settings;
    }

    private static void send(StreamBridge bridge, String topic, String body, String... headers) {
        MessageBuilder<String> message = MessageBuilder.withPayload(body);
        for (int i = 0; i < headers.length; i += 2) {
            message.setHeader(headers[i], headers[i + 1]);
        }
        if (!bridge.send("out" + topic, message.build())) {
            throw new IllegalStateException(topic + " did not take " + body);
        }
    }

    public static void main(String[] args) throws Exception {
        int messages = Integer.parseInt(args[2]);
        int lines = Integer.parseInt(args[3]);
        SpringApplication app = new SpringApplication(App.class);
        app.setDefaultProperties(settings(args[0], args[1]));
        StreamBridge bridge = app.run().getBean(StreamBridge.class);
        for (int i = 0; i < messages; i++) {
            send(bridge, "Plain", "m" + i, "TAGS", i % 2 == 0 ? "even" : "odd", "KEYS", "k" + i, "price", String.valueOf(i % 5));
            send(bridge, "Orderly", "o" + i, "shard", String.valueOf(i % 2));
        }
        send(bridge, "Failing", "comes again");
        send(bridge, "Dead", "dies");
        for (String decision : new String[] {"commit", "rollback", "later"}) {
            send(bridge, "Transaction", decision);
        }
        print("sent", "delayed", now());
        send(bridge, "Delayed", "delayed", "DELAY", "3");
        long deadline = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
        while (LINES.get() < lines && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        print("ended");
        System.exit(0);
    }
}
