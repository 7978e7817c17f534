package versions;

import static versions.Scenarios.admin;
import static versions.Scenarios.arrives;
import static versions.Scenarios.broker;
import static versions.Scenarios.bytes;
import static versions.Scenarios.check;
import static versions.Scenarios.collect;
import static versions.Scenarios.consumer;
import static versions.Scenarios.eventually;
import static versions.Scenarios.group;
import static versions.Scenarios.known;
import static versions.Scenarios.producer;
import static versions.Scenarios.put;
import static versions.Scenarios.range;
import static versions.Scenarios.saw;
import static versions.Scenarios.text;
import static versions.Scenarios.texts;
import static versions.Scenarios.topic;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What every client from 4.2.0 on can. */
public class Basics implements Scenarios.Source {
    static final int MANY = 40;

    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("send", Basics::send);
        scenarios.put("async", Basics::async);
        scenarios.put("oneway", Basics::oneway);
        scenarios.put("batch", Basics::batch);
        scenarios.put("compressed", Basics::compressed);
        scenarios.put("two_members", Basics::twoMembers);
        scenarios.put("orderly", Basics::orderly);
        scenarios.put("broadcast", Basics::broadcast);
        scenarios.put("tags", Basics::tags);
        scenarios.put("sql92", Basics::sql92);
        scenarios.put("delay", Basics::delay);
        scenarios.put("retry", Basics::retry);
        scenarios.put("pull", Basics::pull);
        scenarios.put("query", Basics::query);
        scenarios.put("statistics", Basics::statistics);
        scenarios.put("reset", Basics::reset);
        scenarios.put("reset_offline", Basics::resetOffline);
    }

    // -- sends --------------------------------------------------------------------------------------------------------
    private static void send() throws Exception {
        String topic = topic("Send");
        put(topic, "m", MANY);
        arrives(topic, "send", range("m", 0, MANY));
    }

    private static void async() throws Exception {
        String topic = topic("Async");
        CountDownLatch left = new CountDownLatch(MANY);
        List<Throwable> errors = Collections.synchronizedList(new ArrayList<>());
        for (int i = 0; i < MANY; i++) {
            producer.send(new Message(topic, bytes("a" + i)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    left.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    errors.add(error);
                    left.countDown();
                }
            });
        }
        check(left.await(Scenarios.SECONDS_MAX, TimeUnit.SECONDS) && errors.isEmpty(), "errors: " + errors);
        arrives(topic, "async", range("a", 0, MANY));
    }

    private static void oneway() throws Exception {
        String topic = topic("Oneway");
        for (int i = 0; i < MANY; i++) {
            producer.sendOneway(new Message(topic, bytes("o" + i)));
        }
        arrives(topic, "oneway", range("o", 0, MANY));
    }

    private static void batch() throws Exception {
        String topic = topic("Batch");
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < MANY; i++) {
            messages.add(new Message(topic, "T", "key" + i, bytes("b" + i)));
        }
        producer.send(messages);
        arrives(topic, "batch", range("b", 0, MANY));
    }

    private static void compressed() throws Exception {
        String topic = topic("Compressed");
        String large = String.join("", Collections.nCopies(10_000, "large "));
        put(new Message(topic, bytes(large)));
        arrives(topic, "compressed", Collections.singleton(large));
    }

    // -- push ---------------------------------------------------------------------------------------------------------
    private static void twoMembers() throws Exception {
        String topic = topic("Members");
        DefaultMQPushConsumer one = consumer("members");
        DefaultMQPushConsumer two = consumer("members");
        one.setInstanceName("one");
        two.setInstanceName("two");
        one.subscribe(topic, "*");
        two.subscribe(topic, "*");
        List<MessageExt> first = collect(one);
        List<MessageExt> second = collect(two);
        // the first member hears of the second, and gives it two of the four queues
        int[] sent = {0};
        eventually(() -> {
            put(topic, "m" + sent[0]++ + "-", 4);
            return !first.isEmpty() && !second.isEmpty();
        }, "one of the members got nothing");
        Set<String> all = new HashSet<>();
        for (int i = 0; i < sent[0]; i++) {
            all.addAll(range("m" + i + "-", 0, 4));
        }
        eventually(() -> {
            Set<String> seen = texts(first);
            seen.addAll(texts(second));
            return seen.equals(all);
        }, "some were lost");
        one.shutdown();
        two.shutdown();
    }

    private static void orderly() throws Exception {
        String topic = topic("Orderly");
        for (int i = 0; i < MANY; i++) {
            int shard = i % 4;
            producer.send(new Message(topic, bytes(shard + ":" + i)), (queues, message, arg) -> queues.get((Integer) arg), shard);
        }
        Map<String, List<Integer>> seen = new ConcurrentHashMap<>();
        AtomicInteger count = new AtomicInteger();
        DefaultMQPushConsumer consumer = consumer("orderly");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String[] parts = text(message).split(":");
                seen.computeIfAbsent(parts[0], shard -> Collections.synchronizedList(new ArrayList<>())).add(Integer.valueOf(parts[1]));
                count.incrementAndGet();
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        eventually(() -> count.get() >= MANY, () -> "saw " + count + " of " + MANY);
        consumer.shutdown();
        for (List<Integer> numbers : seen.values()) {
            List<Integer> sorted = new ArrayList<>(numbers);
            Collections.sort(sorted);
            check(sorted.equals(numbers) && numbers.size() == MANY / 4, "out of order: " + numbers);
        }
    }

    private static void broadcast() throws Exception {
        String topic = topic("Broadcast");
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        List<List<MessageExt>> seen = new ArrayList<>();
        for (String name : Arrays.asList("left", "right")) {
            DefaultMQPushConsumer member = consumer("broadcast");
            member.setInstanceName(name);
            broadcasts(member);
            member.subscribe(topic, "*");
            seen.add(collect(member));
            members.add(member);
        }
        // a member that broadcasts may begin at the end of its queues: what it sees first says that it is there
        int[] sent = {0};
        eventually(() -> {
            put(topic, "hello" + sent[0]++ + "-", 4);
            return seen.stream().allMatch(each -> each.stream().map(MessageExt::getQueueId).distinct().count() == 4);
        }, "one of the members got nothing");
        put(topic, "all", 8);
        for (List<MessageExt> each : seen) {
            eventually(() -> texts(each).containsAll(range("all", 0, 8)), () -> "a member saw " + each.size());
        }
        members.forEach(DefaultMQPushConsumer::shutdown);
    }

    /** The type of the setter's argument moved to another package with 5.x. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static void broadcasts(DefaultMQPushConsumer consumer) throws Exception {
        for (java.lang.reflect.Method method : consumer.getClass().getMethods()) {
            if (method.getName().equals("setMessageModel")) {
                Class type = method.getParameterTypes()[0];
                method.invoke(consumer, Enum.valueOf(type, "BROADCASTING"));
            }
        }
    }

    private static void retry() throws Exception {
        String topic = topic("Retry");
        put(topic, "r", 4);
        List<Integer> times = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumer("retry");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            times.add(messages.get(0).getReconsumeTimes());
            return messages.get(0).getReconsumeTimes() == 0
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        eventually(() -> times.stream().filter(each -> each == 1).count() == 4, () -> "tried " + times);
        consumer.shutdown();
    }

    // -- filters and delay --------------------------------------------------------------------------------------------
    private static void tags() throws Exception {
        String topic = topic("Tags");
        Set<String> wanted = new HashSet<>();
        for (int i = 0; i < MANY; i++) {
            String tag = Arrays.asList("A", "B", "C").get(i % 3);
            put(new Message(topic, tag, bytes("t" + i)));
            if (!tag.equals("C")) {
                wanted.add("t" + i);
            }
        }
        DefaultMQPushConsumer consumer = consumer("tags");
        consumer.subscribe(topic, "A || B");
        saw(collect(consumer), wanted);
        consumer.shutdown();
    }

    static String priced(String name, int queues) throws Exception {
        String topic = topic(name, queues);
        for (int i = 0; i < MANY; i++) {
            Message message = new Message(topic, bytes("p" + i));
            message.putUserProperty("price", String.valueOf(i));
            put(message);
        }
        return topic;
    }

    private static void sql92() throws Exception {
        String topic = priced("Sql", 4);
        DefaultMQPushConsumer consumer = consumer("sql");
        consumer.subscribe(topic, MessageSelector.bySql("price >= 10 AND price < 20"));
        saw(collect(consumer), range("p", 10, 20));
        consumer.shutdown();
    }

    private static void delay() throws Exception {
        String topic = topic("Delay");
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer("delay");
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.put(text(message), System.currentTimeMillis()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        Message message = new Message(topic, bytes("later"));
        message.setDelayTimeLevel(1);
        long begin = System.currentTimeMillis();
        put(message);
        eventually(() -> arrived.containsKey("later"), "the delayed one");
        consumer.shutdown();
        check(arrived.get("later") - begin >= 900, "after " + (arrived.get("later") - begin) + " ms");
    }

    // -- pull, queries ------------------------------------------------------------------------------------------------
    static DefaultMQPullConsumer puller(String name) throws Exception {
        DefaultMQPullConsumer consumer = known(new DefaultMQPullConsumer(group(name)));
        consumer.start();
        return consumer;
    }

    private static void pull() throws Exception {
        String topic = topic("Pull");
        for (MessageQueue queue : producer.fetchPublishMessageQueues(topic)) {
            for (int i = 0; i < MANY / 4; i++) {
                producer.send(new Message(topic, bytes("p" + queue.getQueueId() + "-" + i)), queue);
            }
        }
        DefaultMQPullConsumer consumer = puller("pull");
        Set<String> seen = new HashSet<>();
        for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic)) {
            eventually(() -> consumer.maxOffset(queue) == MANY / 4, "the end of " + queue);
            PullResult result = consumer.pull(queue, "*", consumer.minOffset(queue), 32);
            seen.addAll(texts(result.getMsgFoundList()));
            check(consumer.searchOffset(queue, 0) == 0, "offset of time 0");
            // a rebalance of the client forgets offsets of queues that are new to it
            eventually(() -> {
                consumer.updateConsumeOffset(queue, result.getNextBeginOffset());
                consumer.getOffsetStore().persistAll(Collections.singleton(queue));
                return consumer.fetchConsumeOffset(queue, true) == MANY / 4;
            }, "the offset of " + queue);
        }
        check(seen.size() == MANY, "saw " + seen);
        // one that waits at the end is woken by the next message
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        new Thread(() -> {
            try {
                Thread.sleep(300);
                producer.send(new Message(topic, bytes("late")), queue);
            } catch (Exception e) {
                e.printStackTrace();
            }
        }).start();
        PullResult held = consumer.pullBlockIfNotFound(queue, "*", MANY / 4, 32);
        check(held.getPullStatus() == PullStatus.FOUND && text(held.getMsgFoundList().get(0)).equals("late"), held.toString());
        consumer.shutdown();
    }

    private static void query() throws Exception {
        String topic = topic("Query");
        SendResult sent = put(new Message(topic, "T", "the-key other-key", bytes("found")));
        String offsetId = sent.getOffsetMsgId();
        eventually(() -> text(admin.viewMessage(topic, offsetId)).equals("found"), "by offset id");
        eventually(() -> text(producer.viewMessage(topic, sent.getMsgId())).equals("found"), "by unique id");
        long now = System.currentTimeMillis();
        eventually(() -> producer.queryMessage(topic, "the-key", 10, now - 600_000, now + 600_000).getMessageList().size() == 1, "by key");
    }

    // -- what operators do --------------------------------------------------------------------------------------------
    private static DefaultMQPushConsumer consumed(String topic, String name, List<MessageExt> seen) throws Exception {
        put(topic, "m", MANY);
        DefaultMQPushConsumer consumer = consumer(name);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            seen.addAll(messages);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        eventually(() -> seen.size() == MANY, () -> "saw " + seen.size());
        eventually(() -> {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            return consumedOffsets(topic, name) == MANY;
        }, "the offsets of " + name);
        return consumer;
    }

    private static long consumedOffsets(String topic, String name) throws Exception {
        return admin.examineConsumeStats(group(name), topic).getOffsetTable().values().stream()
            .mapToLong(each -> each.getConsumerOffset()).sum();
    }

    private static void statistics() throws Exception {
        String topic = topic("Statistics");
        DefaultMQPushConsumer consumer = consumed(topic, "statistics", Collections.synchronizedList(new ArrayList<>()));
        long stored = admin.examineTopicStats(topic).getOffsetTable().values().stream().mapToLong(each -> each.getMaxOffset()).sum();
        check(stored == MANY, "topic statistics show " + stored);
        check(admin.examineConsumeStats(group("statistics")).computeTotalDiff() == 0, "the group is behind");
        check(admin.examineConsumerConnectionInfo(group("statistics")).getConnectionSet().size() == 1, "members of the group");
        check(admin.queryTopicConsumeByWho(topic).getGroupList().contains(group("statistics")), "groups of the topic");
        check(admin.examineBrokerClusterInfo().getBrokerAddrTable().size() == 1, "the cluster");
        check(!admin.fetchBrokerRuntimeStats(broker).getTable().isEmpty(), "figures of the broker");
        String client = admin.examineConsumerConnectionInfo(group("statistics")).getConnectionSet().iterator().next().getClientId();
        check(!admin.getConsumerRunningInfo(group("statistics"), client, false).getMqTable().isEmpty(), "running info");
        check(admin.getConsumeStatus(topic, group("statistics"), "").size() == 1, "status by client");
        consumer.shutdown();
    }

    private static void reset() throws Exception {
        String topic = topic("Reset");
        List<MessageExt> seen = Collections.synchronizedList(new ArrayList<>());
        DefaultMQPushConsumer consumer = consumed(topic, "reset", seen);
        check(admin.resetOffsetByTimestamp(topic, group("reset"), 0, true).size() == 4, "queues reset");
        eventually(() -> seen.size() >= 2 * MANY, () -> "saw " + seen.size());
        consumer.shutdown();
    }

    private static void resetOffline() throws Exception {
        String topic = topic("ResetOffline");
        consumed(topic, "reset-offline", Collections.synchronizedList(new ArrayList<>())).shutdown();
        eventually(() -> admin.resetOffsetByTimestampOld(group("reset-offline"), topic, 0, true).size() == 4, "queues reset");
        check(consumedOffsets(topic, "reset-offline") == 0, "offsets after the reset");
    }
}
