package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** The Java client of 4.9, driven by tests/interop/grpc5/driver.py, which says what the lines mean. */
public class Driver {
    private static final PrintStream OUT = new PrintStream(new FileOutputStream(FileDescriptor.out), true);
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();

    public static void main(String[] args) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JSONObject said = JSON.parseObject(line);
            threads.execute(() -> answer(said));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void answer(JSONObject said) {
        JSONObject answer = new JSONObject();
        answer.put("id", said.get("id"));
        try {
            answer.put("value", call(said));
        } catch (Throwable error) {
            answer.put("error", error.getClass().getSimpleName() + ": " + error.getMessage());
        }
        say(answer);
    }

    private static synchronized void say(JSONObject said) {
        OUT.println(said.toJSONString());
    }

    private static Object call(JSONObject said) throws Exception {
        String name = said.getString("name");
        switch (said.getString("do")) {
            case "producer":
                DefaultMQProducer producer = new DefaultMQProducer(name);
                producer.setNamesrvAddr(said.getString("endpoint"));
                producer.setInstanceName(name);
                producer.start();
                PRODUCERS.put(name, producer);
                return null;
            case "send":
                Map<String, Object> sent = new LinkedHashMap<>();
                sent.put("id", PRODUCERS.get(name).send(message(said)).getMsgId());
                sent.put("recall", "");
                return sent;
            case "push":
                DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(said.getString("group"));
                consumer.setNamesrvAddr(said.getString("endpoint"));
                consumer.setInstanceName(name);
                consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
                consumer.subscribe(said.getString("topic"), said.getString("expression"));
                consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                    for (MessageExt message : messages) {
                        JSONObject event = new JSONObject();
                        event.put("event", "consumed");
                        event.put("name", name);
                        event.put("message", facts(message));
                        say(event);
                    }
                    return ConsumeOrderlyStatus.SUCCESS;
                });
                consumer.start();
                return null;
            default:
                throw new IllegalArgumentException(said.getString("do"));
        }
    }

    private static Message message(JSONObject said) {
        byte[] body = said.getString("body").getBytes(StandardCharsets.UTF_8);
        Message message = new Message(said.getString("topic"), said.getString("tag"), body);
        if (!said.getJSONArray("keys").isEmpty()) {
            message.setKeys(said.getJSONArray("keys").toJavaList(String.class));
        }
        said.getJSONObject("properties").forEach((key, value) -> message.putUserProperty(key, (String) value));
        if (said.getIntValue("level") > 0) {
            message.setDelayTimeLevel(said.getIntValue("level"));
        }
        if (said.getLongValue("at") > 0) {
            message.putUserProperty("TIMER_DELIVER_MS", said.getString("at"));
        }
        return message;
    }

    private static Map<String, Object> facts(MessageExt message) {
        Map<String, String> properties = message.getProperties();
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("id", message.getMsgId());
        found.put("topic", message.getTopic());
        found.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        found.put("tag", message.getTags() == null ? "" : message.getTags());
        TreeSet<String> keys = new TreeSet<>();
        if (message.getKeys() != null && !message.getKeys().isEmpty()) {
            keys.addAll(java.util.Arrays.asList(message.getKeys().split(" ")));
        }
        found.put("keys", keys);
        found.put("properties", properties);
        found.put("group", properties.getOrDefault("__SHARDINGKEY", ""));
        found.put("at", Long.parseLong(properties.getOrDefault("TIMER_DELIVER_MS", "0")));
        found.put("attempt", message.getReconsumeTimes() + 1);
        return found;
    }
}
