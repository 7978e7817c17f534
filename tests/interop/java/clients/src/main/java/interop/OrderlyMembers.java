package interop;

import java.io.BufferedReader;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * Orderly consumers of one group that come and go as the input says: OrderlyMembers NAMESRV GROUP TOPIC FILE [GROUP TOPIC].
 * With a second group and topic each has a twin that reads that topic concurrently, and appends "took" in place of both.
 * A line "join NAME" or "leave NAME" is answered by the same line when that is done. To the file, which processes share,
 * each appends "begin NAME QUEUE BODY MILLISECONDS" and the same with "end" around every message.
 */
public class OrderlyMembers {
    private static OutputStream file;

    public static void main(String[] args) throws Exception {
        file = new FileOutputStream(args[3], true);
        Map<String, DefaultMQPushConsumer> members = new HashMap<>();
        Map<String, DefaultMQPushConsumer> twins = new HashMap<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String name = line.split(" ")[1];
            if (line.startsWith("join")) {
                members.put(name, member(args[0], args[1], args[2], name));
                if (args.length > 4) {
                    twins.put(name, twin(args[0], args[4], args[5], name));
                }
            } else {
                if (args.length > 4) {
                    twins.remove(name).shutdown();
                }
                members.remove(name).shutdown();
            }
            System.out.println(line);
        }
        System.exit(0);
    }

    private static DefaultMQPushConsumer member(String namesrv, String group, String topic, String name) throws Exception {
        DefaultMQPushConsumer consumer = consumer(namesrv, group, topic);
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            for (MessageExt message : messages) {
                String what = what(name, message);
                append("begin " + what);
                work();
                append("end " + what);
            }
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static DefaultMQPushConsumer twin(String namesrv, String group, String topic, String name) throws Exception {
        DefaultMQPushConsumer consumer = consumer(namesrv, group, topic);
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                append("took " + what(name, message));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static String what(String name, MessageExt message) {
        return name + " " + message.getQueueId() + " " + new String(message.getBody(), StandardCharsets.UTF_8);
    }

    private static DefaultMQPushConsumer consumer(String namesrv, String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setNamesrvAddr(namesrv);
        // a broker on a busy machine may be silent for seconds
        consumer.setMqClientApiTimeout(10_000);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        // a broker that starts again hears soon who is there
        consumer.setHeartbeatBrokerInterval(500);
        // who leaves lets its listeners end before it gives its locks up
        consumer.setAwaitTerminationMillisWhenShutdown(5000);
        consumer.subscribe(topic, "*");
        return consumer;
    }

    /** Long enough for two members to meet in a queue. */
    private static void work() {
        try {
            Thread.sleep(6);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    /** One write each, so that lines of all processes stand in the order in which things happened. */
    private static void append(String line) {
        try {
            file.write((line + " " + System.currentTimeMillis() + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
