package interop;

import java.io.FileOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A producer and a consumer that go on while brokers are replaced: Rolling NAMESRV TOPIC FILE. It sends numbered messages
 * with the retries of the client alone until a line comes in, and takes all messages of the topic until its input ends.
 * To the file it appends "sent java BODY STATUS", "failed java REASON" and "took java BODY".
 */
public class Rolling {
    /** A name server or broker on a busy machine may be silent for seconds. */
    private static final int TIMEOUT_MS = 10_000;

    private static OutputStream file;

    public static void main(String[] args) throws Exception {
        // One whose start fails would live on, and do nothing.
        Thread.currentThread().setUncaughtExceptionHandler((thread, error) -> {
            error.printStackTrace();
            System.exit(1);
        });
        file = new FileOutputStream(args[2], true);
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer("rolling-java");
        consumer.setNamesrvAddr(args[0]);
        consumer.setMqClientApiTimeout(TIMEOUT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setPollNameServerInterval(500);
        consumer.setHeartbeatBrokerInterval(500);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            for (MessageExt message : messages) {
                append("took java " + new String(message.getBody(), StandardCharsets.UTF_8));
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        DefaultMQProducer producer = new DefaultMQProducer("rolling-java-sends");
        producer.setNamesrvAddr(args[0]);
        producer.setMqClientApiTimeout(TIMEOUT_MS);
        producer.setPollNameServerInterval(500);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.start();
        for (int number = 0; System.in.available() == 0; number++) {
            Message message = new Message(args[1], "t", "key" + number, ("java" + number).getBytes(StandardCharsets.UTF_8));
            long began = System.currentTimeMillis();
            try {
                SendResult result = producer.send(message);
                append("sent java java" + number + " " + result.getSendStatus());
            } catch (Exception e) {
                String reason = e + " of " + e.getCause() + ", sent at " + began + ", after "
                    + (System.currentTimeMillis() - began) + " ms";
                append("failed java " + reason.replace('\n', ' '));
            }
            Thread.sleep(10);
        }
        System.out.println("stopped");
        while (System.in.read() >= 0) {
            // what comes in means nothing but that it goes on
        }
        consumer.shutdown();
        producer.shutdown();
        System.exit(0);
    }

    private static synchronized void append(String line) {
        try {
            file.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
