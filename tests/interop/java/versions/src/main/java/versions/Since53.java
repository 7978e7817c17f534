package versions;

import static versions.Scenarios.bytes;
import static versions.Scenarios.check;
import static versions.Scenarios.consumer;
import static versions.Scenarios.eventually;
import static versions.Scenarios.producer;
import static versions.Scenarios.put;
import static versions.Scenarios.text;
import static versions.Scenarios.topic;

import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Messages for a moment, by each of the three properties, and taking one back, which is of 5.3.2. */
public class Since53 implements Scenarios.Source {
    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("timed", Since53::timed);
        scenarios.put("recalled", Since53::recalled);
    }

    private static void timed() throws Exception {
        String topic = topic("Timed", 1);
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = arriving("timed", topic, arrived);
        Message moment = new Message(topic, bytes("moment"));
        Message delayMs = new Message(topic, bytes("ms"));
        Message delaySec = new Message(topic, bytes("sec"));
        Message over = new Message(topic, bytes("over"));
        long now = System.currentTimeMillis();
        moment.setDeliverTimeMs(now + 2_300);
        delayMs.setDelayTimeMs(1_700);
        delaySec.setDelayTimeSec(2);
        over.setDeliverTimeMs(now - 5_000);
        Map<String, Long> due = new TreeMap<>(Map.of("moment", now + 2_300, "ms", now + 1_700, "sec", now + 2_000, "over", now));
        for (Message each : new Message[] {moment, delayMs, delaySec, over}) {
            put(each);
        }
        eventually(() -> arrived.keySet().containsAll(due.keySet()), "messages for a moment");
        consumer.shutdown();
        due.forEach((body, time) -> check(arrived.get(body) >= time, body + " came " + (time - arrived.get(body)) + " ms early"));
    }

    private static void recalled() throws Exception {
        String topic = topic("Recalled", 1);
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = arriving("recalled", topic, arrived);
        Message taken = new Message(topic, bytes("taken"));
        Message kept = new Message(topic, bytes("kept"));
        long at = System.currentTimeMillis() + 4_000;
        taken.setDeliverTimeMs(at);
        kept.setDeliverTimeMs(at + 1_500);
        SendResult sent = put(taken);
        put(kept);
        check(sent.getMsgId().equals(producer.recallMessage(topic, sent.getRecallHandle())), "the id of the one that is taken back");
        eventually(() -> arrived.containsKey("kept"), "the one that is kept");
        check(arrived.keySet().equals(Set.of("kept")), "came: " + arrived.keySet());
        try {
            producer.recallMessage(topic, sent.getRecallHandle());
            check(false, "a moment that is over");
        } catch (MQBrokerException refused) {
            check(refused.getResponseCode() == 604, refused.toString());
        }
        consumer.shutdown();
    }

    private static DefaultMQPushConsumer arriving(String name, String topic, Map<String, Long> arrived) throws Exception {
        DefaultMQPushConsumer consumer = consumer(name);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.put(text(message), System.currentTimeMillis()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }
}
