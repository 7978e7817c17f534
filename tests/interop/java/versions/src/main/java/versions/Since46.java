package versions;

import static versions.Scenarios.bytes;
import static versions.Scenarios.check;
import static versions.Scenarios.consumer;
import static versions.Scenarios.eventually;
import static versions.Scenarios.group;
import static versions.Scenarios.known;
import static versions.Scenarios.producer;
import static versions.Scenarios.put;
import static versions.Scenarios.range;
import static versions.Scenarios.text;
import static versions.Scenarios.texts;
import static versions.Scenarios.topic;

import java.util.Collection;
import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull, requests and replies, which came with 4.6.0. */
public class Since46 implements Scenarios.Source {
    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("lite_pull", Since46::litePull);
        scenarios.put("lite_sql92", Since46::liteSql92);
        scenarios.put("lite_assign", Since46::liteAssign);
        scenarios.put("request_reply", Since46::requestReply);
    }

    private static DefaultLitePullConsumer lite(String name) {
        DefaultLitePullConsumer consumer = known(new DefaultLitePullConsumer(group(name)));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    private static void polls(DefaultLitePullConsumer consumer, Set<String> wanted) throws Exception {
        Set<String> seen = new HashSet<>();
        eventually(() -> {
            seen.addAll(texts(consumer.poll(200)));
            return seen.containsAll(wanted);
        }, () -> "polled " + seen);
        check(seen.equals(wanted), "polled " + seen);
    }

    private static void litePull() throws Exception {
        String topic = topic("Lite");
        put(topic, "l", 40);
        DefaultLitePullConsumer consumer = lite("lite");
        consumer.subscribe(topic, "*");
        consumer.start();
        polls(consumer, range("l", 0, 40));
        // what waits is woken
        put(topic, "late", 4);
        polls(consumer, range("late", 0, 4));
        consumer.commitSync();
        consumer.shutdown();
        put(topic, "next", 4);
        DefaultLitePullConsumer next = lite("lite");
        next.subscribe(topic, "*");
        next.start();
        polls(next, range("next", 0, 4));
        next.shutdown();
    }

    private static void liteSql92() throws Exception {
        String topic = topic("LiteSql");
        for (int i = 0; i < 12; i++) {
            Message message = new Message(topic, bytes("s" + i));
            message.putUserProperty("n", String.valueOf(i));
            put(message);
        }
        DefaultLitePullConsumer consumer = lite("lite-sql");
        consumer.subscribe(topic, MessageSelector.bySql("n >= 8"));
        consumer.start();
        polls(consumer, range("s", 8, 12));
        consumer.shutdown();
    }

    private static void liteAssign() throws Exception {
        String topic = topic("LiteAssign");
        put(topic, "a", 40);
        DefaultLitePullConsumer consumer = lite("lite-assign");
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        polls(consumer, range("a", 0, 40));
        for (MessageQueue queue : queues) {
            consumer.seek(queue, 0);
        }
        polls(consumer, range("a", 0, 40));
        consumer.shutdown();
    }

    private static void requestReply() throws Exception {
        String topic = topic("Request");
        // Of a client of its own: where any producer of a client id leaves, a Java broker brings no more replies to that id.
        DefaultMQProducer asker = known(new DefaultMQProducer(group("asker")));
        asker.setInstanceName(group("asker"));
        asker.setSendMsgTimeout(Scenarios.TIMEOUT_MS);
        asker.start();
        DefaultMQPushConsumer server = consumer("server");
        server.subscribe(topic, "*");
        server.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            try {
                for (Message message : messages) {
                    producer.send(MessageUtil.createReplyMessage(message, bytes("heard " + text(message))));
                }
            } catch (Exception e) {
                e.printStackTrace();
                context.setDelayLevelWhenNextConsume(1);
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        server.start();
        // with 5.3.3 the callback is also called, with nothing, as soon as the request is sent; what waits in its place gives up then
        CompletableFuture<Message> reply = new CompletableFuture<>();
        asker.request(new Message(topic, bytes("hello")), new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                if (message != null) {
                    reply.complete(message);
                }
            }

            @Override
            public void onException(Throwable error) {
                reply.completeExceptionally(error);
            }
        }, Scenarios.TIMEOUT_MS);
        check(text(reply.get(Scenarios.TIMEOUT_MS, TimeUnit.MILLISECONDS)).equals("heard hello"), "the reply");
        asker.shutdown();
        server.shutdown();
    }
}
