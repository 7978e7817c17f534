package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;

/**
 * A 4.9 client with TLS and accounts, one case after the other in one process. Each line of the input is a case: what is done, and
 * then NAME=VALUE each, separated by tabs. To each comes one line: "ok", or what went wrong.
 *
 * What is done: send, pull, push (of a topic and a group), all (also transactions that the broker asks about, and requests).
 * Names: namesrv, topic, group, timeout (in ms); accessKey, secretKey; tls, authServer, trust, cert, key, password, as the system properties say it.
 */
public class Secured {
    private static final int SECONDS_MAX = 60;
    /** A broker on a busy machine may be silent for seconds. */
    private static final int TIMEOUT_MS = 30_000;

    private static Map<String, String> given;
    private static int number;

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String outcome = "ok";
            try {
                run(line.split("\t"));
            } catch (Throwable e) {
                StringBuilder text = new StringBuilder(String.valueOf(e));
                for (Throwable cause = e.getCause(); cause != null; cause = cause.getCause()) {
                    text.append(" <- ").append(cause);
                }
                outcome = text.toString().replace('\n', ' ');
            }
            System.out.println("outcome\t" + outcome);
            System.out.flush();
        }
        System.exit(0);
    }

    private static void run(String[] words) throws Exception {
        given = new HashMap<>();
        for (int i = 1; i < words.length; i++) {
            String[] pair = words[i].split("=", 2);
            given.put(pair[0], pair[1]);
        }
        number++;
        // read whenever a client is made
        TlsSystemConfig.tlsTestModeEnable = false;
        TlsSystemConfig.tlsClientAuthServer = "true".equals(given.get("authServer"));
        TlsSystemConfig.tlsClientTrustCertPath = given.get("trust");
        TlsSystemConfig.tlsClientCertPath = given.get("cert");
        TlsSystemConfig.tlsClientKeyPath = given.get("key");
        TlsSystemConfig.tlsClientKeyPassword = given.get("password");
        DefaultMQProducer producer = made(new DefaultMQProducer("secured-producer", account()));
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        try {
            switch (words[0]) {
                case "send":
                    send(producer, "send" + number);
                    break;
                case "pull":
                    pull(0);
                    break;
                case "push":
                    push(send(producer, "push" + number));
                    break;
                case "all":
                    all(producer);
                    break;
                default:
                    throw new IllegalArgumentException(words[0]);
            }
        } finally {
            producer.shutdown();
        }
    }

    private static RPCHook account() {
        return given.containsKey("accessKey") ? new AclClientRPCHook(new SessionCredentials(given.get("accessKey"), given.get("secretKey"))) : null;
    }

    private static <T extends ClientConfig> T made(T client) {
        client.setNamesrvAddr(given.get("namesrv"));
        client.setUseTLS("true".equals(given.get("tls")));
        client.setMqClientApiTimeout(Integer.parseInt(given.getOrDefault("timeout", String.valueOf(TIMEOUT_MS))));
        client.setHeartbeatBrokerInterval(1_000);
        // clients of one name share connections
        client.setInstanceName("case" + number);
        return client;
    }

    private static String topic() {
        return given.get("topic");
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(Message message) {
        return new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static void check(boolean fact, String what) {
        if (!fact) {
            throw new IllegalStateException(what);
        }
    }

    private static String send(DefaultMQProducer producer, String body) throws Exception {
        SendResult result = producer.send(new Message(topic(), "T", bytes(body)));
        check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
        return body;
    }

    /** Reads all of the topic, and checks that there is as much. */
    private static void pull(int least) throws Exception {
        DefaultMQPullConsumer consumer = made(new DefaultMQPullConsumer(given.get("group"), account()));
        consumer.start();
        try {
            int found = 0;
            for (MessageQueue queue : consumer.fetchSubscribeMessageQueues(topic())) {
                long end = consumer.maxOffset(queue);
                for (long offset = consumer.minOffset(queue); offset < end; ) {
                    PullResult result = consumer.pull(queue, "*", offset, 32);
                    found += result.getMsgFoundList().size();
                    offset = result.getNextBeginOffset();
                }
                consumer.updateConsumeOffset(queue, end);
            }
            check(found >= least, "found " + found);
        } finally {
            consumer.shutdown();
        }
    }

    private static DefaultMQPushConsumer consumer() {
        DefaultMQPushConsumer consumer = made(new DefaultMQPushConsumer(given.get("group"), account(), new AllocateMessageQueueAveragely()));
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setAwaitTerminationMillisWhenShutdown(TIMEOUT_MS);
        return consumer;
    }

    private static void push(String... bodies) throws Exception {
        Set<String> open = ConcurrentHashMap.newKeySet();
        open.addAll(List.of(bodies));
        CountDownLatch all = new CountDownLatch(bodies.length);
        DefaultMQPushConsumer consumer = consumer();
        consumer.subscribe(topic(), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                if (open.remove(text(message))) {
                    all.countDown();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        boolean complete = all.await(SECONDS_MAX, TimeUnit.SECONDS);
        consumer.shutdown();
        check(complete, "never came: " + open);
    }

    private static void all(DefaultMQProducer producer) throws Exception {
        send(producer, "one" + number);
        CountDownLatch sent = new CountDownLatch(100);
        Set<Throwable> errors = ConcurrentHashMap.newKeySet();
        for (int i = 0; i < 100; i++) {
            producer.send(new Message(topic(), "T", bytes("async" + number + "-" + i)), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent.countDown();
                }

                @Override
                public void onException(Throwable e) {
                    errors.add(e);
                    sent.countDown();
                }
            });
        }
        check(sent.await(SECONDS_MAX, TimeUnit.SECONDS) && errors.isEmpty(), "async: " + errors);
        producer.sendOneway(new Message(topic(), "T", bytes("oneway" + number)));
        String large = "large".repeat(100_000);
        send(producer, large);
        String committed = transaction();
        push("one" + number, "async" + number + "-7", "oneway" + number, large, committed);
        pull(104);
        request(producer);
    }

    /** A half message that the broker has to ask about; its body. */
    private static String transaction() throws Exception {
        String body = "half" + number;
        CountDownLatch asked = new CountDownLatch(1);
        TransactionMQProducer sender = made(new TransactionMQProducer(null, "secured-transactions", account()));
        sender.setSendMsgTimeout(TIMEOUT_MS);
        sender.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                return LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                asked.countDown();
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        sender.start();
        try {
            sender.sendMessageInTransaction(new Message(topic(), "T", bytes(body)), null);
            check(asked.await(SECONDS_MAX, TimeUnit.SECONDS), "the broker never asked");
        } finally {
            sender.shutdown();
        }
        return body;
    }

    private static void request(DefaultMQProducer producer) throws Exception {
        DefaultMQPushConsumer server = consumer();
        server.subscribe(topic(), "request");
        server.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                try {
                    producer.send(MessageUtil.createReplyMessage(message, bytes(text(message) + "!")));
                } catch (Exception e) {
                    e.printStackTrace();
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        server.start();
        Message reply = producer.request(new Message(topic(), "request", bytes("who")), TIMEOUT_MS);
        server.shutdown();
        check(text(reply).equals("who!"), text(reply));
    }
}
