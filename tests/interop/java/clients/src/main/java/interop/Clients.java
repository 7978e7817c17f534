package interop;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.heartbeat.MessageModel;

/**
 * What a Java application does with a 4.9 client, one scenario after another in one process: Clients NAMESRV.
 * Prints one line per scenario: its name, a tab, "ok" or what went wrong.
 */
public class Clients {
    interface Scenario {
        void run() throws Exception;
    }

    private static final int SECONDS_MAX = 60;
    /** A broker on a busy machine may be silent for seconds. */
    private static final int TIMEOUT_MS = 30_000;

    private static String namesrv;
    private static DefaultMQProducer producer;

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        producer = patient(new DefaultMQProducer("java-producer"));
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        scenario("send", Clients::send);
        scenario("async", Clients::async);
        scenario("oneway", Clients::oneway);
        scenario("consume", Clients::consume);
        scenario("batch", Clients::batch);
        scenario("tags", Clients::tags);
        scenario("keys", Clients::keys);
        scenario("query_by_id", Clients::queryById);
        scenario("properties", Clients::properties);
        scenario("compressed", Clients::compressed);
        scenario("pull", Clients::pull);
        scenario("lite_pull", Clients::litePull);
        scenario("orderly", Clients::orderly);
        scenario("broadcast", Clients::broadcast);
        scenario("two_members", Clients::twoMembers);
        scenario("resumes", Clients::resumes);
        scenario("offsets", Clients::offsets);
        producer.shutdown();
        System.exit(0);
    }

    private static void scenario(String name, Scenario scenario) {
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

    /** A client that waits for slow answers, and is online again soon. */
    private static <T extends ClientConfig> T patient(T client) {
        client.setNamesrvAddr(namesrv);
        client.setMqClientApiTimeout(TIMEOUT_MS);
        client.setHeartbeatBrokerInterval(1_000);
        return client;
    }

    private static long deadline() {
        return System.currentTimeMillis() + SECONDS_MAX * 1_000;
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static SendResult put(Message message) throws Exception {
        SendResult result = producer.send(message);
        check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
        return result;
    }

    private static DefaultMQPushConsumer consumer(String group) {
        DefaultMQPushConsumer consumer = patient(new DefaultMQPushConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        // a message counts as consumed only after its listener returned: who leaves waits for that
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);
        return consumer;
    }

    /** Starts a consumer, waits until every expected body was seen, and gives the bodies seen. */
    private static Set<String> receive(DefaultMQPushConsumer consumer, Set<String> expected) throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch all = new CountDownLatch(expected.size());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                String body = new String(message.getBody(), StandardCharsets.UTF_8);
                if (seen.add(body) && expected.contains(body)) {
                    all.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(SECONDS_MAX, TimeUnit.SECONDS);
        consumer.shutdown();
        check(complete, "saw " + seen.size() + " of " + expected.size());
        return seen;
    }

    private static void send() throws Exception {
        SendResult first = put(new Message("JavaSend", bytes("one")));
        check(first.getOffsetMsgId().length() == 32, "offset id " + first.getOffsetMsgId());
        check(first.getQueueOffset() == 0, "queue offset " + first.getQueueOffset());
        MessageQueue queue = first.getMessageQueue();
        SendResult second = producer.send(new Message("JavaSend", bytes("two")), queue);
        check(second.getQueueOffset() == 1, "queue offset " + second.getQueueOffset());
        SendResult third = producer.send(new Message("JavaSend", bytes("three")), (queues, message, arg) -> queues.get((int) arg), 2);
        check(third.getMessageQueue().getQueueId() == 2, third.toString());
    }

    private static void async() throws Exception {
        CountDownLatch done = new CountDownLatch(100);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < 100; i++) {
            producer.send(new Message("JavaAsync", bytes("a" + i)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    done.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    failed.incrementAndGet();
                    done.countDown();
                }
            });
        }
        check(done.await(SECONDS_MAX, TimeUnit.SECONDS) && failed.get() == 0, "failed " + failed.get() + " open " + done.getCount());
    }

    private static void oneway() throws Exception {
        Set<String> expected = ConcurrentHashMap.newKeySet();
        put(new Message("JavaOneway", bytes("first")));
        for (int i = 0; i < 50; i++) {
            producer.sendOneway(new Message("JavaOneway", bytes("o" + i)));
            expected.add("o" + i);
        }
        DefaultMQPushConsumer consumer = consumer("java-oneway");
        consumer.subscribe("JavaOneway", "*");
        receive(consumer, expected);
    }

    private static void consume() throws Exception {
        Set<String> expected = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 200; i++) {
            put(new Message("JavaConsume", "T" + i % 3, "k" + i, bytes("c" + i)));
            expected.add("c" + i);
        }
        DefaultMQPushConsumer consumer = consumer("java-consume");
        consumer.subscribe("JavaConsume", "*");
        check(receive(consumer, expected).equals(expected), "more than was sent");
    }

    private static void batch() throws Exception {
        List<Message> messages = new ArrayList<>();
        Set<String> expected = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 64; i++) {
            messages.add(new Message("JavaBatch", "B", "batch" + i, bytes("b" + i)));
            expected.add("b" + i);
        }
        SendResult result = producer.send(messages);
        check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
        check(result.getOffsetMsgId().split(",").length == 64, "ids " + result.getOffsetMsgId());
        DefaultMQPushConsumer consumer = consumer("java-batch");
        consumer.subscribe("JavaBatch", "B");
        check(receive(consumer, expected).equals(expected), "more than was sent");
    }

    private static void tags() throws Exception {
        Set<String> expected = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 40; i++) {
            // "AaAa" and "BBBB" have the same hash code: only the client can tell them apart
            String tag = Arrays.asList("AaAa", "BBBB", "C", "D").get(i % 4);
            put(new Message("JavaTags", tag, bytes(tag + i)));
            if (tag.equals("AaAa") || tag.equals("C")) {
                expected.add(tag + i);
            }
        }
        DefaultMQPushConsumer consumer = consumer("java-tags");
        consumer.subscribe("JavaTags", "AaAa || C");
        check(receive(consumer, expected).equals(expected), "a tag slipped through");
    }

    private static void keys() throws Exception {
        for (int i = 0; i < 5; i++) {
            put(new Message("JavaKeys", "T", "order-7 other" + i, bytes("k" + i)));
        }
        put(new Message("JavaKeys", "T", "order-8", bytes("k5")));
        long deadline = deadline();
        int found = 0;
        while (found != 5 && System.currentTimeMillis() < deadline) {
            try {
                QueryResult result = producer.queryMessage("JavaKeys", "order-7", 32, 0, Long.MAX_VALUE);
                found = result.getMessageList().size();
            } catch (org.apache.rocketmq.client.exception.MQClientException notYet) {
                found = 0;
            }
        }
        check(found == 5, "found " + found);
        QueryResult other = producer.queryMessage("JavaKeys", "other3", 32, 0, Long.MAX_VALUE);
        check(other.getMessageList().size() == 1, "found " + other.getMessageList().size());
        check(Arrays.equals(other.getMessageList().get(0).getBody(), bytes("k3")), "wrong body");
    }

    private static void queryById() throws Exception {
        SendResult result = put(new Message("JavaById", "T", "id", bytes("by id")));
        MessageExt byOffset = producer.viewMessage(result.getOffsetMsgId());
        check(Arrays.equals(byOffset.getBody(), bytes("by id")), "wrong body");
        long deadline = deadline();
        MessageExt byKey = null;
        while (byKey == null && System.currentTimeMillis() < deadline) {
            try {
                byKey = producer.viewMessage("JavaById", result.getMsgId());
            } catch (org.apache.rocketmq.client.exception.MQClientException notIndexedYet) {
                Thread.sleep(5);
            }
        }
        check(byKey != null && Arrays.equals(byKey.getBody(), bytes("by id")), "wrong body by unique key");
    }

    private static void properties() throws Exception {
        Message message = new Message("JavaProps", "T", "p", 7, bytes("props"), false);
        message.putUserProperty("region", "eu-1");
        message.putUserProperty("name", "\u7f8a \u20ac");
        SendResult result = put(message);
        MessageExt stored = producer.viewMessage(result.getOffsetMsgId());
        check("eu-1".equals(stored.getUserProperty("region")), "region " + stored.getProperties());
        check("\u7f8a \u20ac".equals(stored.getUserProperty("name")), "name " + stored.getProperties());
        check(stored.getFlag() == 7 && "T".equals(stored.getTags()) && "p".equals(stored.getKeys()), stored.toString());
    }

    private static void compressed() throws Exception {
        String body = String.join("", Collections.nCopies(3000, "compress me "));
        SendResult result = put(new Message("JavaBig", bytes(body)));
        DefaultMQPushConsumer consumer = consumer("java-big");
        consumer.subscribe("JavaBig", "*");
        receive(consumer, Collections.singleton(body));
        check(producer.viewMessage(result.getOffsetMsgId()).getStoreSize() < 10000, "stored uncompressed");
    }

    private static void pull() throws Exception {
        for (int i = 0; i < 40; i++) {
            put(new Message("JavaPull", bytes("p" + i)));
        }
        DefaultMQPullConsumer consumer = patient(new DefaultMQPullConsumer("java-pull"));
        consumer.start();
        int found = 0;
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues("JavaPull")) {
            long offset = consumer.minOffset(queue);
            long end = consumer.maxOffset(queue);
            while (offset < end) {
                PullResult result = consumer.pull(queue, "*", offset, 7);
                check(result.getPullStatus() == PullStatus.FOUND, result.toString());
                found += result.getMsgFoundList().size();
                offset = result.getNextBeginOffset();
            }
            check(consumer.pull(queue, "*", offset, 7).getPullStatus() == PullStatus.NO_NEW_MSG, "at the end");
            check(consumer.pull(queue, "*", end + 1000, 7).getPullStatus() == PullStatus.OFFSET_ILLEGAL, "beyond the end");
            consumer.updateConsumeOffset(queue, offset);
        }
        consumer.shutdown();
        check(found == 40, "found " + found);
    }

    private static void litePull() throws Exception {
        for (int i = 0; i < 30; i++) {
            put(new Message("JavaLite", bytes("l" + i)));
        }
        DefaultLitePullConsumer consumer = patient(new DefaultLitePullConsumer("java-lite"));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe("JavaLite", "*");
        consumer.start();
        Set<String> seen = ConcurrentHashMap.newKeySet();
        long deadline = deadline();
        while (seen.size() < 30 && System.currentTimeMillis() < deadline) {
            for (MessageExt message : consumer.poll(1000)) {
                seen.add(new String(message.getBody(), StandardCharsets.UTF_8));
            }
        }
        consumer.shutdown();
        check(seen.size() == 30, "saw " + seen.size());
    }

    private static void orderly() throws Exception {
        for (int i = 0; i < 60; i++) {
            producer.send(new Message("JavaOrder", bytes(i % 3 + ":" + i)), (queues, message, arg) -> queues.get((int) arg), i % 3);
        }
        CountDownLatch all = new CountDownLatch(60);
        int[] last = {-1, -1, -1};
        List<String> wrong = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer("java-order");
        consumer.subscribe("JavaOrder", "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] parts = new String(message.getBody(), StandardCharsets.UTF_8).split(":");
                int queue = Integer.parseInt(parts[0]);
                int number = Integer.parseInt(parts[1]);
                if (number <= last[queue]) {
                    wrong.add(number + " after " + last[queue]);
                }
                last[queue] = number;
                all.countDown();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(SECONDS_MAX, TimeUnit.SECONDS);
        consumer.shutdown();
        check(complete && wrong.isEmpty(), "open " + all.getCount() + " wrong " + wrong);
    }

    private static void broadcast() throws Exception {
        put(new Message("JavaBroadcast", bytes("before")));
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        CountDownLatch all = new CountDownLatch(40);
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = consumer("java-broadcast");
            consumer.setInstanceName("member" + i + System.nanoTime());
            consumer.setMessageModel(MessageModel.BROADCASTING);
            consumer.subscribe("JavaBroadcast", "T");
            Set<String> seen = ConcurrentHashMap.newKeySet();
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    if (seen.add(message.getMsgId())) {
                        all.countDown();
                    }
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        for (int i = 0; i < 20; i++) {
            put(new Message("JavaBroadcast", "T", bytes("x" + i)));
        }
        boolean complete = all.await(SECONDS_MAX, TimeUnit.SECONDS);
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        check(complete, "open " + all.getCount());
    }

    private static void twoMembers() throws Exception {
        put(new Message("JavaShare", bytes("first")));
        AtomicInteger[] counts = {new AtomicInteger(), new AtomicInteger()};
        Set<String> seen = ConcurrentHashMap.newKeySet();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            AtomicInteger count = counts[i];
            DefaultMQPushConsumer consumer = consumer("java-share");
            consumer.subscribe("JavaShare", "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                for (MessageExt message : messages) {
                    seen.add(new String(message.getBody(), StandardCharsets.UTF_8));
                    count.incrementAndGet();
                }
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
            consumers.add(consumer);
        }
        long deadline = deadline();
        int sent = 0;
        while ((counts[0].get() == 0 || counts[1].get() == 0) && System.currentTimeMillis() < deadline) {
            put(new Message("JavaShare", bytes("m" + sent++)));
            Thread.sleep(20);
        }
        check(counts[0].get() > 0 && counts[1].get() > 0, "one member got nothing");
        consumers.get(0).shutdown();
        int from = sent;
        for (int i = 0; i < 40; i++) {
            put(new Message("JavaShare", bytes("m" + sent++)));
        }
        while (System.currentTimeMillis() < deadline) {
            boolean all = true;
            for (int i = from; i < sent; i++) {
                all &= seen.contains("m" + i);
            }
            if (all) {
                break;
            }
            Thread.sleep(20);
        }
        consumers.get(1).shutdown();
        for (int i = 0; i < sent; i++) {
            check(seen.contains("m" + i), "m" + i + " of " + sent + " is missing");
        }
    }

    private static void resumes() throws Exception {
        Set<String> first = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 20; i++) {
            put(new Message("JavaResume", bytes("r" + i)));
            first.add("r" + i);
        }
        DefaultMQPushConsumer one = consumer("java-resume");
        one.subscribe("JavaResume", "*");
        receive(one, first);
        Set<String> second = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 20; i++) {
            put(new Message("JavaResume", bytes("s" + i)));
            second.add("s" + i);
        }
        DefaultMQPushConsumer two = consumer("java-resume");
        two.subscribe("JavaResume", "*");
        check(receive(two, second).equals(second), "consumed again what was committed");
    }

    private static void offsets() throws Exception {
        long before = System.currentTimeMillis();
        SendResult result = put(new Message("JavaOffsets", bytes("one")));
        MessageQueue queue = result.getMessageQueue();
        check(producer.minOffset(queue) == 0, "min");
        check(producer.maxOffset(queue) == 1, "max");
        check(producer.searchOffset(queue, before) == 0, "by time");
        check(Math.abs(producer.earliestMsgStoreTime(queue) - before) < 60000, "earliest");
    }
}
