package grpc5;

import com.google.gson.Gson;
import com.google.gson.JsonObject;
import java.io.BufferedReader;
import java.io.Closeable;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** The official Java client of RocketMQ 5, driven by tests/interop/grpc5/driver.py, which says what the lines mean. */
public class Driver {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Gson GSON = new Gson();
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
    private static final Map<String, Closeable> CLIENTS = new ConcurrentHashMap<>();
    private static final Map<String, Transaction> TRANSACTIONS = new ConcurrentHashMap<>();
    private static final Map<Integer, MessageView> RECEIVED = new ConcurrentHashMap<>();
    private static final AtomicInteger NUMBERS = new AtomicInteger();

    public static void main(String[] args) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonObject said = GSON.fromJson(line, JsonObject.class);
            threads.execute(() -> answer(said));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JsonObject said) {
        Map<String, Object> answer = new LinkedHashMap<>();
        answer.put("id", said.get("id").getAsInt());
        try {
            answer.put("value", call(said));
        } catch (Throwable error) {
            answer.put("error", error.getClass().getSimpleName() + ": " + error.getMessage());
        }
        say(answer);
    }

    private static synchronized void say(Map<String, Object> said) {
        OUT.println(GSON.toJson(said));
    }

    private static void tell(String event, String name, String member, Object value) {
        Map<String, Object> said = new LinkedHashMap<>();
        said.put("event", event);
        said.put("name", name);
        said.put(member, value);
        say(said);
    }

    private static Object call(JsonObject said) throws Exception {
        String name = text(said, "name");
        switch (text(said, "do")) {
            case "producer":
                CLIENTS.put(name, producer(said));
                return null;
            case "send":
                return send(said, (Producer) CLIENTS.get(name));
            case "end":
                Transaction transaction = TRANSACTIONS.get(text(said, "body"));
                if (text(said, "how").equals("commit")) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
                return null;
            case "recall":
                return ((Producer) CLIENTS.get(name)).recallMessage(text(said, "topic"), text(said, "handle")).getMessageId().toString();
            case "simple":
                CLIENTS.put(name, PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration(said))
                    .setConsumerGroup(text(said, "group")).setSubscriptionExpressions(subscriptions(said))
                    .setAwaitDuration(Duration.ofSeconds(5)).build());
                return null;
            case "receive":
                List<Object> found = new ArrayList<>();
                for (MessageView each : simple(name).receive(number(said, "count"), Duration.ofSeconds(number(said, "invisible")))) {
                    found.add(facts(each));
                }
                return found;
            case "ack":
                simple(name).ack(RECEIVED.get(number(said, "n")));
                return null;
            case "change":
                simple(name).changeInvisibleDuration(RECEIVED.get(number(said, "n")), Duration.ofSeconds(number(said, "seconds")));
                return null;
            case "push":
                CLIENTS.put(name, push(said));
                return null;
            case "close":
                CLIENTS.remove(name).close();
                return null;
            default:
                throw new IllegalArgumentException(text(said, "do"));
        }
    }

    private static String text(JsonObject said, String name) {
        return said.get(name).getAsString();
    }

    private static int number(JsonObject said, String name) {
        return said.get(name).getAsInt();
    }

    private static SimpleConsumer simple(String name) {
        return (SimpleConsumer) CLIENTS.get(name);
    }

    private static ClientConfiguration configuration(JsonObject said) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder().setEndpoints(text(said, "endpoint"))
            .setRequestTimeout(Duration.ofSeconds(10));
        if (!said.get("tls").getAsBoolean()) {
            builder.enableSsl(false);
        }
        if (!text(said, "key").isEmpty()) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(text(said, "key"), text(said, "secret")));
        }
        return builder.build();
    }

    private static Map<String, FilterExpression> subscriptions(JsonObject said) {
        FilterExpressionType type = said.get("sql").getAsBoolean() ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        return Collections.singletonMap(text(said, "topic"), new FilterExpression(text(said, "expression"), type));
    }

    private static Closeable producer(JsonObject said) throws Exception {
        String name = text(said, "name");
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration(said))
            .setTopics(GSON.fromJson(said.get("topics"), String[].class))
            .setTransactionChecker(message -> {
                String body = body(message);
                tell("checked", name, "body", body);
                return body.equals("commit") ? TransactionResolution.COMMIT
                    : body.equals("rollback") ? TransactionResolution.ROLLBACK : TransactionResolution.UNKNOWN;
            }).build();
    }

    private static Object send(JsonObject said, Producer producer) throws Exception {
        MessageBuilder builder = PROVIDER.newMessageBuilder().setTopic(text(said, "topic"))
            .setBody(text(said, "body").getBytes(StandardCharsets.UTF_8));
        if (!text(said, "tag").isEmpty()) {
            builder.setTag(text(said, "tag"));
        }
        if (said.getAsJsonArray("keys").size() > 0) {
            builder.setKeys(GSON.fromJson(said.get("keys"), String[].class));
        }
        said.getAsJsonObject("properties").entrySet().forEach(each -> builder.addProperty(each.getKey(), each.getValue().getAsString()));
        if (!text(said, "group").isEmpty()) {
            builder.setMessageGroup(text(said, "group"));
        }
        if (said.get("at").getAsLong() > 0) {
            builder.setDeliveryTimestamp(said.get("at").getAsLong());
        }
        SendReceipt receipt;
        if (said.get("transaction").getAsBoolean()) {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(builder.build(), transaction);
            TRANSACTIONS.put(text(said, "body"), transaction);
        } else {
            receipt = producer.send(builder.build());
        }
        Map<String, Object> sent = new LinkedHashMap<>();
        sent.put("id", receipt.getMessageId().toString());
        sent.put("recall", receipt.getRecallHandle());
        return sent;
    }

    private static Closeable push(JsonObject said) throws Exception {
        String name = text(said, "name");
        int failures = number(said, "failures");
        Map<String, Integer> calls = new ConcurrentHashMap<>();
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration(said)).setConsumerGroup(text(said, "group"))
            .setSubscriptionExpressions(subscriptions(said)).setMessageListener(message -> {
                tell("consumed", name, "message", facts(message));
                int times = calls.merge(message.getMessageId().toString(), 1, Integer::sum);
                boolean fails = body(message).startsWith("fail") && times <= failures;
                return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            }).build();
    }

    private static String body(MessageView message) {
        return StandardCharsets.UTF_8.decode(message.getBody()).toString();
    }

    private static Map<String, Object> facts(MessageView message) {
        int number = NUMBERS.incrementAndGet();
        RECEIVED.put(number, message);
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("n", number);
        found.put("id", message.getMessageId().toString());
        found.put("topic", message.getTopic());
        found.put("body", body(message));
        found.put("tag", message.getTag().orElse(""));
        found.put("keys", new TreeSet<>(message.getKeys()));
        found.put("properties", message.getProperties());
        found.put("group", message.getMessageGroup().orElse(""));
        found.put("at", message.getDeliveryTimestamp().orElse(0L));
        found.put("attempt", message.getDeliveryAttempt());
        return found;
    }
}
