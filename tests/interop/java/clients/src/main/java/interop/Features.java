package interop;

import static interop.Scenario.SECONDS_MAX;
import static interop.Scenario.TIMEOUT_MS;
import static interop.Scenario.admin;
import static interop.Scenario.all;
import static interop.Scenario.bytes;
import static interop.Scenario.check;
import static interop.Scenario.collect;
import static interop.Scenario.consumer;
import static interop.Scenario.eventually;
import static interop.Scenario.namesrv;
import static interop.Scenario.patient;
import static interop.Scenario.producer;
import static interop.Scenario.puller;
import static interop.Scenario.put;
import static interop.Scenario.putLater;
import static interop.Scenario.send;
import static interop.Scenario.storedAt;
import static interop.Scenario.text;
import static interop.Scenario.texts;

import java.text.SimpleDateFormat;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.Collections;
import java.util.Date;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.admin.ConsumeStats;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.common.protocol.body.CMResult;
import org.apache.rocketmq.common.protocol.body.Connection;
import org.apache.rocketmq.common.protocol.body.ConsumeMessageDirectlyResult;
import org.apache.rocketmq.common.protocol.body.ConsumerConnection;
import org.apache.rocketmq.common.protocol.body.ConsumerRunningInfo;
import org.apache.rocketmq.common.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/**
 * Delay, retry, order, transactions, filters, requests, positions and resets with a 4.9 client: Features NAMESRV.
 * All scenarios run at the same time, each with topics, groups and clients of its own, since most of them wait.
 * Prints one line per scenario: "scenario", its name, "ok" or what went wrong, separated by tabs.
 *
 * The broker must have enablePropertyFilter=true, accessMessageInMemoryMaxRatio=0 (a group without offset then
 * starts where the client wants), delay levels of about a second and frequent transaction checks.
 */
public class Features {
    interface Scenario {
        void run() throws Exception;
    }

    private static final String SERVED_BY_KEROLOX = "KeroloxServes";
    private static final String SERVED_BY_JAVA = "JavaServes";
    private static final String SHARED = "SharedAcross";

    public static void main(String[] args) throws Exception {
        namesrv = args[0];
        if (args.length > 1) {
            OrderlyFeatures.beKilled();
            return;
        }
        producer = new DefaultMQProducer("features-producer");
        producer.setSendMsgTimeout(TIMEOUT_MS);
        // it takes queues in turn, and would begin anew with a route that is new
        producer.setPollNameServerInterval(600_000);
        patient(producer).start();
        admin = new DefaultMQAdminExt(TIMEOUT_MS);
        admin.setNamesrvAddr(namesrv);
        admin.setInstanceName("features-admin");
        admin.start();
        Map<String, Scenario> scenarios = new LinkedHashMap<>();
        scenarios.put("reset", Features::reset);
        scenarios.put("reset_offline", Features::resetOffline);
        scenarios.put("sql92", Features::sql92);
        scenarios.put("delay", Features::delay);
        scenarios.put("timed", Features::timed);
        scenarios.put("retry_to_dlq", Features::retryToDeadLetters);
        scenarios.put("straight_to_dlq", Features::straightToDeadLetters);
        scenarios.put("more_retry_queues", Features::moreRetryQueues);
        scenarios.put("orderly_retry", OrderlyFeatures::orderlyRetry);
        scenarios.put("orderly_joins_and_leaves", OrderlyFeatures::orderlyJoinsAndLeaves);
        scenarios.put("orderly_kill", OrderlyFeatures::orderlyKill);
        scenarios.put("transactions", Features::transactions);
        scenarios.put("request_reply", Features::requestReply);
        scenarios.put("request_callback", Features::requestCallback);
        scenarios.put("request_to_kerolox", Features::requestToKerolox);
        scenarios.put("from_last", Features::fromLast);
        scenarios.put("from_timestamp", Features::fromTimestamp);
        scenarios.put("from_first", Features::fromFirst);
        scenarios.put("pull_held", Features::pullHeld);
        scenarios.put("pull_filtered", Features::pullFiltered);
        scenarios.put("lite_assign_and_seek", Features::liteAssignAndSeek);
        scenarios.put("lite_by_time", Features::liteByTime);
        scenarios.put("lite_subscribe_sql", Features::liteSubscribeSql);
        scenarios.put("topic_made_again", Features::topicMadeAgain);
        scenarios.put("shares_with_kerolox", Features::sharesWithKerolox);
        scenarios.put("directly", Features::directly);
        scenarios.put("clone_offset", Features::cloneOffset);
        serve(SERVED_BY_JAVA);
        ExecutorService threads = Executors.newFixedThreadPool(scenarios.size());
        List<Future<?>> running = new ArrayList<>();
        scenarios.forEach((name, scenario) -> running.add(threads.submit(() -> scenario(name, scenario))));
        for (Future<?> each : running) {
            each.get(2 * SECONDS_MAX, TimeUnit.SECONDS);
        }
        System.exit(0);
    }

    private static void scenario(String name, Scenario scenario) {
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

    // -- filters, delay -----------------------------------------------------------------------------------------------
    private static void sql92() throws Exception {
        Set<String> expected = new HashSet<>();
        for (int i = 0; i < 40; i++) {
            Message message = new Message("FeatSql", i % 2 == 0 ? "even" : "odd", bytes("m" + i));
            message.putUserProperty("price", String.valueOf(i));
            if (i % 4 == 0) {
                message.putUserProperty("region", "eu");
            }
            put(message);
            if (i % 2 == 0 && i >= 10 && i <= 30 && i % 4 != 0 || i == 39) {
                expected.add("m" + i);
            }
        }
        DefaultMQPushConsumer consumer = consumer("feat-sql");
        consumer.subscribe("FeatSql", MessageSelector.bySql("(TAGS = 'even' AND price BETWEEN 10 AND 30 AND region IS NULL) OR price > 38"));
        List<MessageExt> seen = collect(consumer);
        eventually(() -> seen.size() >= expected.size(), "saw " + seen.size() + " of " + expected.size());
        // one that waits is woken by the next that fits
        Message fits = new Message("FeatSql", bytes("late"));
        fits.putUserProperty("price", "99");
        put(new Message("FeatSql", bytes("no price")));
        put(fits);
        expected.add("late");
        eventually(() -> texts(seen).contains("late"), "the late one");
        consumer.shutdown();
        check(texts(seen).equals(expected), "saw " + texts(seen));
        DefaultMQPushConsumer wrong = consumer("feat-sql-wrong");
        wrong.subscribe("FeatSql", MessageSelector.bySql("price >"));
        try {
            collect(wrong);
            throw new IllegalStateException("an expression that is none was accepted");
        } catch (MQClientException refused) {
            check(String.valueOf(refused).contains("23"), refused.toString());
        }
    }

    private static void delay() throws Exception {
        DefaultMQPushConsumer consumer = consumer("feat-delay");
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        consumer.subscribe("FeatDelay", "*");
        put(new Message("FeatDelay", bytes("now")));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.put(text(message), System.currentTimeMillis()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        eventually(() -> arrived.containsKey("now"), "the one without a delay");
        Map<String, Long> due = new TreeMap<>();
        for (int level : new int[] {1, 3, 18}) {
            Message message = new Message("FeatDelay", "T", "key" + level, bytes("level" + level));
            message.setDelayTimeLevel(level);
            due.put("level" + level, System.currentTimeMillis() + (level == 18 ? 3000 : 1000));
            SendResult result = put(message);
            check(result.getMessageQueue().getTopic().equals("FeatDelay"), result.toString());
        }
        eventually(() -> arrived.keySet().containsAll(due.keySet()), "delayed messages");
        consumer.shutdown();
        due.forEach((body, time) -> check(arrived.get(body) >= time, body + " came " + (time - arrived.get(body)) + " ms early"));
    }

    /** A client of 4.9 names the moment by properties of its own. */
    private static void timed() throws Exception {
        DefaultMQPushConsumer consumer = consumer("feat-timed");
        Map<String, Long> arrived = new ConcurrentHashMap<>();
        consumer.subscribe("FeatTimed", "*");
        put(new Message("FeatTimed", bytes("now")));
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> arrived.put(text(message), System.currentTimeMillis()));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        eventually(() -> arrived.containsKey("now"), "the one without a moment");
        long now = System.currentTimeMillis();
        Map<String, Long> due = new TreeMap<>();
        Map<String, Long> given = Map.of("TIMER_DELIVER_MS", now + 2_300, "TIMER_DELAY_MS", 1_700L, "TIMER_DELAY_SEC", 2L);
        for (Map.Entry<String, Long> each : given.entrySet()) {
            Message message = new Message("FeatTimed", bytes(each.getKey()));
            message.putUserProperty(each.getKey(), each.getValue().toString());
            due.put(each.getKey(), each.getValue() > now ? each.getValue() : now + each.getValue() * (each.getValue() < 100 ? 1_000 : 1));
            put(message);
        }
        eventually(() -> arrived.keySet().containsAll(due.keySet()), "messages for a moment");
        consumer.shutdown();
        due.forEach((body, time) -> check(arrived.get(body) >= time, body + " came " + (time - arrived.get(body)) + " ms early"));
    }

    // -- retry, order -------------------------------------------------------------------------------------------------
    private static void retryToDeadLetters() throws Exception {
        put("FeatRetry", "r", 4);
        DefaultMQPushConsumer consumer = consumer("feat-retry");
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe("FeatRetry", "*");
        List<String> tries = Collections.synchronizedList(new ArrayList<>());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            tries.add(text(message) + message.getReconsumeTimes() + message.getTopic());
            boolean recovers = text(message).equals("r0") && message.getReconsumeTimes() == 1;
            return recovers ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        DefaultMQPullConsumer reader = puller("feat-retry-reader");
        eventually((Callable<Boolean>) () -> all(reader, "%DLQ%feat-retry").size() == 3, "three dead letters");
        eventually(() -> tries.size() >= 11, "tries " + tries);
        List<MessageExt> dead = all(reader, "%DLQ%feat-retry");
        consumer.shutdown();
        reader.shutdown();
        check(texts(dead).equals(new HashSet<>(Arrays.asList("r1", "r2", "r3"))), texts(dead).toString());
        MessageExt one = dead.get(0);
        check("FeatRetry".equals(one.getProperty("RETRY_TOPIC")) && one.getProperty("ORIGIN_MESSAGE_ID") != null, one.toString());
        check(one.getReconsumeTimes() == 3, "tried " + one.getReconsumeTimes());
        // the client gives retried messages the topic that they were sent to
        Set<String> expected = new HashSet<>(Arrays.asList("r00FeatRetry", "r01FeatRetry"));
        for (String body : new String[] {"r1", "r2", "r3"}) {
            for (int times = 0; times < 3; times++) {
                expected.add(body + times + "FeatRetry");
            }
        }
        check(new HashSet<>(tries).equals(expected) && tries.size() == 11, tries.toString());
    }

    /** A consumer that runs gets what is given back after its group got more retry queues. */
    private static void moreRetryQueues() throws Exception {
        put("FeatWider", "w", 1);
        DefaultMQPushConsumer consumer = consumer("feat-wider");
        consumer.subscribe("FeatWider", "*");
        Set<String> again = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            context.setDelayLevelWhenNextConsume(1);
            if (messages.get(0).getReconsumeTimes() == 0) {
                return ConsumeConcurrentlyStatus.RECONSUME_LATER;
            }
            again.add(text(messages.get(0)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        eventually(() -> again.size() == 1, "the first one again");
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName("feat-wider");
        group.setRetryQueueNums(4);
        String broker = admin.examineTopicRouteInfo("FeatWider").getBrokerDatas().get(0).selectBrokerAddr();
        admin.createAndUpdateSubscriptionGroupConfig(broker, group);
        put("FeatWider", "x", 24);
        eventually(() -> again.size() == 25, "all of them again; there came " + again);
        consumer.shutdown();
        int queues = admin.examineTopicRouteInfo("%RETRY%feat-wider").getQueueDatas().get(0).getReadQueueNums();
        check(queues == 4, "retry queues " + queues);
    }

    private static void straightToDeadLetters() throws Exception {
        put("FeatDead", "d", 1);
        DefaultMQPushConsumer consumer = consumer("feat-dead");
        consumer.subscribe("FeatDead", "*");
        AtomicInteger tries = new AtomicInteger();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            tries.incrementAndGet();
            context.setDelayLevelWhenNextConsume(-1);
            return ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        consumer.start();
        DefaultMQPullConsumer reader = puller("feat-dead-reader");
        eventually((Callable<Boolean>) () -> all(reader, "%DLQ%feat-dead").size() == 1, "the dead letter");
        consumer.shutdown();
        reader.shutdown();
        check(tries.get() == 1, "tried " + tries.get());
    }

    // -- transactions -------------------------------------------------------------------------------------------------
    private static void transactions() throws Exception {
        put(new Message("FeatTran", "other", bytes("the topic exists")));
        Set<String> asked = ConcurrentHashMap.newKeySet();
        TransactionMQProducer sender = new TransactionMQProducer("feat-tran-producer");
        sender.setSendMsgTimeout(TIMEOUT_MS);
        sender.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                String body = text(message);
                return body.startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : body.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.add(text(message));
                return text(message).contains("commit") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        patient(sender).start();
        Set<String> expected = new HashSet<>();
        Set<String> unclear = new HashSet<>();
        for (int i = 0; i < 20; i++) {
            String body = Arrays.asList("commit", "rollback", "later commit", "later rollback").get(i % 4) + i;
            SendResult result = sender.sendMessageInTransaction(new Message("FeatTran", "T", "key" + i, bytes(body)), null);
            check(result.getSendStatus() == SendStatus.SEND_OK && result.getQueueOffset() >= 0, result.toString());
            if (body.contains("commit")) {
                expected.add(body);
            }
            if (body.startsWith("later")) {
                unclear.add(body);
            }
        }
        DefaultMQPushConsumer consumer = consumer("feat-tran");
        consumer.subscribe("FeatTran", "T");
        List<MessageExt> seen = collect(consumer);
        eventually(() -> texts(seen).containsAll(expected), "all commits");
        // when the machine is busy, the broker may ask about others too before it hears of them
        eventually(() -> asked.containsAll(unclear), "asked about " + asked);
        consumer.shutdown();
        sender.shutdown();
        check(seen.size() == expected.size(), "saw " + texts(seen));
    }

    // -- requests -----------------------------------------------------------------------------------------------------
    /** Starts a consumer that replies to every request of a topic, in capitals. */
    private static DefaultMQPushConsumer serve(String topic) throws Exception {
        put(new Message(topic, "other", bytes("the topic exists")));
        DefaultMQPushConsumer server = consumer("feat-serve-" + topic);
        server.subscribe(topic, "request");
        server.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (text(message).equals("silence")) {
                    continue;
                }
                try {
                    Message reply = MessageUtil.createReplyMessage(message, bytes(text(message).toUpperCase()));
                    SendResult sent = producer.send(reply);
                    check(sent.getSendStatus() == SendStatus.SEND_OK, sent.toString());
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        server.start();
        return server;
    }

    private static DefaultMQProducer asker(String group) throws MQClientException {
        DefaultMQProducer asker = patient(new DefaultMQProducer(group));
        asker.setSendMsgTimeout(TIMEOUT_MS);
        asker.start();
        return asker;
    }

    private static void requestReply() throws Exception {
        DefaultMQPushConsumer server = serve("FeatAsk");
        DefaultMQProducer asker = asker("feat-asker");
        for (int i = 0; i < 20; i++) {
            Message reply = asker.request(new Message("FeatAsk", "request", bytes("question " + i)), TIMEOUT_MS);
            check(text(reply).equals("QUESTION " + i), text(reply));
            check(reply.getTopic().equals("DefaultCluster_REPLY_TOPIC"), reply.getTopic());
        }
        String large = String.join("", Collections.nCopies(2000, "large "));
        check(text(asker.request(new Message("FeatAsk", "request", bytes(large)), TIMEOUT_MS)).equals(large.toUpperCase()), "the large one");
        Message toQueue = asker.request(new Message("FeatAsk", "request", bytes("q")), (queues, message, arg) -> queues.get(0), null, TIMEOUT_MS);
        check(text(toQueue).equals("Q"), text(toQueue));
        try {
            asker.request(new Message("FeatAsk", "request", bytes("silence")), 5_000);
            throw new IllegalStateException("a reply out of nothing");
        } catch (RequestTimeoutException expected) {
            check(expected.getResponseCode() == 10006, expected.toString());
        }
        asker.shutdown();
        server.shutdown();
        // the client that asked is gone
        DefaultMQPullConsumer reader = puller("feat-ask-reader");
        for (MessageExt request : all(reader, "FeatAsk")) {
            if (text(request).equals("silence")) {
                try {
                    producer.send(MessageUtil.createReplyMessage(request, bytes("too late")));
                    throw new IllegalStateException("a reply to nobody");
                } catch (MQClientException refused) {
                    check(String.valueOf(refused.getCause()).contains("not found"), refused.toString());
                }
            }
        }
        reader.shutdown();
    }

    private static void requestCallback() throws Exception {
        DefaultMQPushConsumer server = serve("FeatCall");
        DefaultMQProducer asker = asker("feat-caller");
        Set<String> replies = ConcurrentHashMap.newKeySet();
        AtomicReference<Throwable> failure = new AtomicReference<>();
        for (int i = 0; i < 20; i++) {
            asker.request(new Message("FeatCall", "request", bytes("c" + i)), new RequestCallback() {
                @Override
                public void onSuccess(Message message) {
                    // the 4.9 client also calls with null when the request was stored
                    if (message != null) {
                        replies.add(text(message));
                    }
                }

                @Override
                public void onException(Throwable e) {
                    failure.set(e);
                }
            }, TIMEOUT_MS);
        }
        eventually(() -> replies.size() == 20, "replies " + replies + " " + failure.get());
        asker.shutdown();
        server.shutdown();
    }

    /** The topic is served by a client of Kerolox, outside of this process. */
    private static void requestToKerolox() throws Exception {
        DefaultMQProducer asker = asker("feat-asker-across");
        Message reply = asker.request(new Message(SERVED_BY_KEROLOX, bytes("who is there?")), TIMEOUT_MS);
        check(text(reply).equals("kerolox heard: who is there?"), text(reply));
        check("yes".equals(reply.getUserProperty("kind")), reply.getProperties().toString());
        asker.shutdown();
    }

    /** A group with a member of Kerolox, outside of this process: prints what this one got of 40 messages. */
    private static void sharesWithKerolox() throws Exception {
        String group = "shared-across";
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(SHARED, "T || U");
        List<MessageExt> seen = collect(consumer);
        eventually((Callable<Boolean>) () -> admin.examineConsumerConnectionInfo(group).getConnectionSet().size() == 2, "two members");
        Set<MessageQueue> shares = new HashSet<>();
        eventually((Callable<Boolean>) () -> {
            shares.clear();
            boolean even = true;
            for (Connection member : admin.examineConsumerConnectionInfo(group).getConnectionSet()) {
                List<MessageQueue> share = admin.getConsumerRunningInfo(group, member.getClientId(), false).getMqTable().keySet().stream()
                    .filter(queue -> queue.getTopic().equals(SHARED)).collect(Collectors.toList());
                shares.addAll(share);
                // the one that was there first may still have all of them
                even &= share.size() == 2;
            }
            return shares.size() == 4 && even;
        }, "each queue with one member");
        Set<MessageQueue> own = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals(SHARED)).collect(Collectors.toSet());
        check(own.size() == 2, "owns " + own);
        Set<String> expected = new HashSet<>();
        for (int i = 0; i < 40; i++) {
            if (own.contains(put(new Message(SHARED, "T", bytes("both" + i))).getMessageQueue())) {
                expected.add("both" + i);
            }
        }
        eventually(() -> texts(seen).containsAll(expected), "saw " + texts(seen));
        consumer.shutdown();
        for (int i = 0; i < 8; i++) {
            put(new Message(SHARED, "T", bytes("alone" + i)));
        }
        check(texts(seen).equals(expected) && seen.size() == expected.size(), "saw " + texts(seen) + " instead of " + expected);
        System.out.println("shared\t" + String.join("\t", expected));
    }

    // -- where a group starts -----------------------------------------------------------------------------------------
    private static void fromFirst() throws Exception {
        Set<String> old = put("FeatFirst", "old", 8);
        DefaultMQPushConsumer consumer = consumer("feat-first");
        consumer.subscribe("FeatFirst", "*");
        List<MessageExt> seen = collect(consumer);
        eventually(() -> texts(seen).equals(old), "saw " + texts(seen));
        consumer.shutdown();
    }

    private static void fromLast() throws Exception {
        put("FeatLast", "old", 8);
        DefaultMQPushConsumer consumer = consumer("feat-last");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.subscribe("FeatLast", "*");
        List<MessageExt> seen = collect(consumer);
        eventually(() -> consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet().stream()
            .filter(queue -> queue.getTopic().equals("FeatLast")).count() == 4, "four queues");
        Set<String> expected = put("FeatLast", "new", 8);
        eventually(() -> texts(seen).containsAll(expected), "saw " + texts(seen));
        consumer.shutdown();
        check(texts(seen).equals(expected), "saw " + texts(seen));
    }

    private static void fromTimestamp() throws Exception {
        put("FeatTime", "old", 8);
        // the client's time has seconds only: what is sent is to be near to one
        Thread.sleep(1_000 - System.currentTimeMillis() % 1_000);
        Set<String> expected = new HashSet<>();
        long second = putLater("FeatTime", "new", expected) / 1_000;
        DefaultMQPushConsumer consumer = consumer("feat-time");
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
        consumer.setConsumeTimestamp(new SimpleDateFormat("yyyyMMddHHmmss").format(new Date(second * 1000)));
        consumer.subscribe("FeatTime", "*");
        List<MessageExt> seen = collect(consumer);
        eventually(() -> texts(seen).containsAll(expected), "saw " + texts(seen));
        consumer.shutdown();
        check(texts(seen).equals(expected), "saw " + texts(seen));
    }

    // -- pull, lite pull ----------------------------------------------------------------------------------------------
    private static void pullHeld() throws Exception {
        MessageQueue queue = put(new Message("FeatHeld", bytes("first"))).getMessageQueue();
        DefaultMQPullConsumer consumer = puller("feat-held");
        AtomicReference<PullResult> held = new AtomicReference<>();
        Thread waiter = new Thread(() -> {
            try {
                PullResult result = consumer.pullBlockIfNotFound(queue, "wanted", 1, 32);
                // one that comes late finds the unwanted one, and goes on behind it
                while (result.getPullStatus() == PullStatus.NO_MATCHED_MSG) {
                    result = consumer.pullBlockIfNotFound(queue, "wanted", result.getNextBeginOffset(), 32);
                }
                held.set(result);
            } catch (Exception e) {
                e.printStackTrace();
            }
        });
        waiter.start();
        Thread.sleep(300);
        producer.send(new Message("FeatHeld", "other", bytes("no")), queue);
        producer.send(new Message("FeatHeld", "wanted", bytes("yes")), queue);
        waiter.join(SECONDS_MAX * 1000);
        consumer.shutdown();
        check(held.get() != null && held.get().getPullStatus() == PullStatus.FOUND, String.valueOf(held.get()));
        check(texts(held.get().getMsgFoundList()).equals(Collections.singleton("yes")), held.get().toString());
        check(held.get().getNextBeginOffset() == 3, held.get().toString());
    }

    private static void pullFiltered() throws Exception {
        MessageQueue queue = put(new Message("FeatPullSql", bytes("first"))).getMessageQueue();
        for (int i = 0; i < 10; i++) {
            Message message = new Message("FeatPullSql", "T" + i % 2, bytes("p" + i));
            message.putUserProperty("n", String.valueOf(i));
            producer.send(message, queue);
        }
        DefaultMQPullConsumer consumer = puller("feat-pull-sql");
        PullResult[] found = {null};
        // the client does not dare before a heartbeat has told it the broker's version
        eventually((Callable<Boolean>) () -> (found[0] = consumer.pull(queue, MessageSelector.bySql("n > 6"), 0, 32)) != null, "by SQL92");
        PullResult bySql = found[0];
        PullResult byTag = consumer.pull(queue, "T1", 0, 32);
        PullResult nothing = consumer.pull(queue, MessageSelector.bySql("n > 60"), 0, 32);
        consumer.shutdown();
        check(texts(bySql.getMsgFoundList()).equals(new HashSet<>(Arrays.asList("p7", "p8", "p9"))), bySql.toString());
        check(texts(byTag.getMsgFoundList()).equals(new HashSet<>(Arrays.asList("p1", "p3", "p5", "p7", "p9"))), byTag.toString());
        check(nothing.getPullStatus() == PullStatus.NO_MATCHED_MSG && nothing.getNextBeginOffset() == 11, nothing.toString());
    }

    private static DefaultLitePullConsumer lite(String group) {
        DefaultLitePullConsumer consumer = patient(new DefaultLitePullConsumer(group));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return consumer;
    }

    /** Polls until all of these bodies came since the call. */
    private static Set<String> poll(DefaultLitePullConsumer consumer, Set<String> expected) {
        Set<String> seen = new HashSet<>();
        long deadline = System.currentTimeMillis() + SECONDS_MAX * 1000;
        while (!seen.containsAll(expected)) {
            check(System.currentTimeMillis() < deadline, "saw " + seen + " of " + expected);
            seen.addAll(texts(consumer.poll(200)));
        }
        return seen;
    }

    private static Set<String> range(String prefix, int from, int to) {
        Set<String> bodies = new HashSet<>();
        for (int i = from; i < to; i++) {
            bodies.add(prefix + i);
        }
        return bodies;
    }

    private static void liteAssignAndSeek() throws Exception {
        MessageQueue queue = put(new Message("FeatLite", bytes("l0"))).getMessageQueue();
        for (int i = 1; i < 10; i++) {
            producer.send(new Message("FeatLite", bytes("l" + i)), queue);
        }
        DefaultLitePullConsumer consumer = lite("feat-lite");
        consumer.setAutoCommit(false);
        consumer.start();
        Collection<MessageQueue> queues = consumer.fetchMessageQueues("FeatLite");
        check(queues.size() == 4, "queues " + queues);
        consumer.assign(Collections.singletonList(queue));
        consumer.seekToBegin(queue);
        check(poll(consumer, range("l", 0, 10)).equals(range("l", 0, 10)), "from the begin");
        consumer.seek(queue, 6);
        check(poll(consumer, range("l", 6, 10)).equals(range("l", 6, 10)), "from 6");
        consumer.commitSync();
        eventually((Callable<Boolean>) () -> consumer.committed(queue) == 10, "the commit");
        consumer.seekToEnd(queue);
        producer.send(new Message("FeatLite", bytes("l10")), queue);
        check(poll(consumer, range("l", 10, 11)).equals(range("l", 10, 11)), "from the end");
        consumer.pause(Collections.singletonList(queue));
        consumer.seek(queue, 8);
        check(consumer.poll(300).isEmpty(), "paused");
        consumer.resume(Collections.singletonList(queue));
        check(poll(consumer, range("l", 8, 11)).equals(range("l", 8, 11)), "after the pause");
        consumer.shutdown();
    }

    private static void liteByTime() throws Exception {
        MessageQueue queue = put(new Message("FeatLiteTime", bytes("t0"))).getMessageQueue();
        producer.send(new Message("FeatLiteTime", bytes("t1")), queue);
        // the offset of a time is that of the message nearest to it
        Thread.sleep(300);
        long time = storedAt(producer.send(new Message("FeatLiteTime", bytes("t2")), queue)) - 1;
        producer.send(new Message("FeatLiteTime", bytes("t3")), queue);
        DefaultLitePullConsumer consumer = lite("feat-lite-time");
        consumer.start();
        consumer.assign(Collections.singletonList(queue));
        long offset = consumer.offsetForTimestamp(queue, time);
        check(offset == 2, "offset " + offset);
        consumer.seek(queue, offset);
        check(poll(consumer, range("t", 2, 4)).equals(range("t", 2, 4)), "from the time");
        consumer.shutdown();
    }

    private static void liteSubscribeSql() throws Exception {
        for (int i = 0; i < 12; i++) {
            Message message = new Message("FeatLiteSql", bytes("s" + i));
            message.putUserProperty("n", String.valueOf(i));
            put(message);
        }
        DefaultLitePullConsumer consumer = lite("feat-lite-sql");
        consumer.subscribe("FeatLiteSql", MessageSelector.bySql("n >= 8"));
        consumer.start();
        check(poll(consumer, range("s", 8, 12)).equals(range("s", 8, 12)), "by SQL92");
        consumer.commitSync();
        consumer.shutdown();
        // the group goes on where it was, automatically committed or not
        put("FeatLiteSql", "unwanted", 4);
        Message message = new Message("FeatLiteSql", bytes("s12"));
        message.putUserProperty("n", "12");
        put(message);
        DefaultLitePullConsumer next = lite("feat-lite-sql");
        next.subscribe("FeatLiteSql", MessageSelector.bySql("n >= 8"));
        next.start();
        check(poll(next, range("s", 12, 13)).equals(range("s", 12, 13)), "again what was committed");
        next.shutdown();
    }

    // -- what operators do --------------------------------------------------------------------------------------------
    private static void reset() throws Exception {
        Set<String> old = put("FeatReset", "old", 8);
        Set<String> later = new HashSet<>();
        long time = putLater("FeatReset", "later", later);
        DefaultMQPushConsumer consumer = consumer("feat-reset");
        consumer.subscribe("FeatReset", "*");
        List<MessageExt> seen = collect(consumer);
        eventually(() -> seen.size() == 16, "saw " + seen.size());
        seen.clear();
        committed(consumer, "FeatReset");
        Map<MessageQueue, Long> told = admin.resetOffsetByTimestamp("FeatReset", "feat-reset", time, true);
        check(told.size() == 4 && told.values().stream().allMatch(offset -> offset == 2), told.toString());
        // the client rests for ten seconds, then goes on where it was told
        eventually(() -> texts(seen).containsAll(later), "saw " + texts(seen));
        consumer.shutdown();
        check(texts(seen).equals(later), "saw " + texts(seen) + " " + old);
    }

    private static void resetOffline() throws Exception {
        put("FeatOffline", "old", 8);
        DefaultMQPushConsumer first = consumer("feat-offline");
        first.subscribe("FeatOffline", "*");
        List<MessageExt> before = collect(first);
        eventually(() -> before.size() == 8, "saw " + before.size());
        first.shutdown();
        committed("feat-offline", "FeatOffline");
        Set<String> later = new HashSet<>();
        long time = putLater("FeatOffline", "later", later);
        DefaultMQPushConsumer second = consumer("feat-offline");
        second.subscribe("FeatOffline", "*");
        List<MessageExt> all = collect(second);
        eventually(() -> texts(all).equals(later), "saw " + texts(all));
        second.shutdown();
        try {
            admin.resetOffsetByTimestamp("FeatOffline", "feat-offline", time, true);
            throw new IllegalStateException("nobody is online");
        } catch (MQClientException refused) {
            check(refused.getResponseCode() == 206, refused.toString());
        }
        admin.resetOffsetByTimestampOld("feat-offline", "FeatOffline", time, true);
        DefaultMQPushConsumer third = consumer("feat-offline");
        third.subscribe("FeatOffline", "*");
        List<MessageExt> again = collect(third);
        eventually(() -> texts(again).equals(later), "saw " + texts(again));
        third.shutdown();
        check(again.size() == 8, "saw " + again.size());
    }

    /** Its consumers run meanwhile, and get all of the new one, which has more than they have seen of the old one. */
    private static void topicMadeAgain() throws Exception {
        Set<String> old = put("FeatAgain", "old", 16);
        DefaultMQPushConsumer push = consumer("feat-again");
        push.subscribe("FeatAgain", "*");
        List<MessageExt> seen = collect(push);
        DefaultLitePullConsumer lite = lite("feat-again-lite");
        lite.subscribe("FeatAgain", "*");
        lite.start();
        poll(lite, old);
        eventually(() -> texts(seen).containsAll(old), "saw " + texts(seen));
        committed(push, "FeatAgain");
        admin.deleteTopicInBroker(Collections.singleton(brokerAddress()), "FeatAgain");
        admin.deleteTopicInNameServer(Collections.singleton(namesrv), "FeatAgain", null);
        Set<String> fresh = put("FeatAgain", "new", 64);
        poll(lite, fresh);
        eventually(() -> texts(seen).containsAll(fresh), "saw " + texts(seen));
        push.shutdown();
        lite.shutdown();
    }

    private static void directly() throws Exception {
        SendResult sent = put(new Message("FeatDirect", "T", "key", bytes("again")));
        DefaultMQPushConsumer consumer = consumer("feat-direct");
        consumer.subscribe("FeatDirect", "T || U");
        List<MessageExt> seen = collect(consumer);
        eventually(() -> seen.size() == 1, "the message");
        ConsumerConnection online = admin.examineConsumerConnectionInfo("feat-direct");
        check(online.getConnectionSet().size() == 1 && online.getConsumeFromWhere() == ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET, "connections");
        check(online.getSubscriptionTable().get("FeatDirect").getSubString().equals("T || U"), "subscriptions");
        String clientId = online.getConnectionSet().iterator().next().getClientId();
        eventually((Callable<Boolean>) () -> {
            ConsumerRunningInfo info = admin.getConsumerRunningInfo("feat-direct", clientId, false);
            return info.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals("FeatDirect")).count() == 4;
        }, "queues of " + clientId);
        // the broker's index follows a moment later
        eventually((Callable<Boolean>) () -> admin.queryMessage("FeatDirect", "key", 32, 0, Long.MAX_VALUE).getMessageList().size() == 1, "its index");
        ConsumeMessageDirectlyResult result = admin.consumeMessageDirectly("feat-direct", clientId, "FeatDirect", sent.getMsgId());
        check(result.getConsumeResult() == CMResult.CR_SUCCESS, result.toString());
        check(seen.size() == 2 && text(seen.get(1)).equals("again"), "consumed " + seen.size() + " times");
        committed(consumer, "FeatDirect");
        Map<String, Map<MessageQueue, Long>> status = admin.getConsumeStatus("FeatDirect", "feat-direct", clientId);
        check(status.get(clientId).getOrDefault(sent.getMessageQueue(), -1L) == 1, status.toString());
        ConsumeStats stats = admin.examineConsumeStats("feat-direct", "FeatDirect");
        check(stats.computeTotalDiff() == 0, "behind " + stats.computeTotalDiff());
        check(admin.queryTopicConsumeByWho("FeatDirect").getGroupList().contains("feat-direct"), "consumed by whom");
        check(admin.queryConsumeTimeSpan("FeatDirect", "feat-direct").size() == 4, "time spans");
        check(!admin.messageTrackDetail(admin.viewMessage("FeatDirect", sent.getMsgId())).isEmpty(), "tracks");
        check(admin.queryConsumeQueue(brokerAddress(), "FeatDirect", sent.getMessageQueue().getQueueId(), 0, 10, "feat-direct").getQueueData().size() == 1, "queue entries");
        // a producer greets the brokers that it knows every second
        eventually((Callable<Boolean>) () -> admin.examineProducerConnectionInfo("features-producer", "FeatDirect").getConnectionSet().size() == 1, "producers");
        consumer.shutdown();
    }

    private static void cloneOffset() throws Exception {
        put("FeatClone", "old", 8);
        DefaultMQPushConsumer first = consumer("feat-clone-from");
        first.subscribe("FeatClone", "*");
        List<MessageExt> before = collect(first);
        eventually(() -> before.size() == 8, "saw " + before.size());
        first.shutdown();
        committed("feat-clone-from", "FeatClone");
        admin.cloneGroupOffset("feat-clone-from", "feat-clone-to", "FeatClone", true);
        Set<String> later = put("FeatClone", "later", 4);
        DefaultMQPushConsumer second = consumer("feat-clone-to");
        second.subscribe("FeatClone", "*");
        List<MessageExt> seen = collect(second);
        eventually(() -> texts(seen).containsAll(later), "saw " + texts(seen));
        second.shutdown();
        check(texts(seen).equals(later), "saw " + texts(seen));
    }

    /** A consumer that leaves tells its offsets without waiting for an answer. */
    private static void committed(String group, String topic) throws Exception {
        eventually((Callable<Boolean>) () -> admin.examineConsumeStats(group, topic).computeTotalDiff() == 0, "the offsets of " + group);
    }

    /** One that stays tells them now and then, without waiting for an answer too. */
    private static void committed(DefaultMQPushConsumer consumer, String topic) throws Exception {
        eventually((Callable<Boolean>) () -> {
            consumer.getDefaultMQPushConsumerImpl().persistConsumerOffset();
            return admin.examineConsumeStats(consumer.getConsumerGroup(), topic).computeTotalDiff() == 0;
        }, "the offsets of " + consumer.getConsumerGroup());
    }

    private static String brokerAddress() throws Exception {
        return admin.examineBrokerClusterInfo().getBrokerAddrTable().values().iterator().next().getBrokerAddrs().get(0L);
    }
}
