package interop;

import java.nio.charset.StandardCharsets;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;

/**
 * Through NAMESRV TOPIC GROUP COUNT SECONDS: a client of 4.9 sends so many messages, and a group that nobody knows yet receives them. Prints
 * "received" and how many.
 */
public class Through {
    public static void main(String[] args) throws Exception {
        int count = Integer.parseInt(args[3]);
        DefaultMQProducer producer = new DefaultMQProducer(args[2] + "-producer");
        producer.setNamesrvAddr(args[0]);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        for (int i = 0; i < count; i++) {
            producer.send(new Message(args[1], ("m" + i).getBytes(StandardCharsets.UTF_8)));
        }
        Set<String> seen = ConcurrentHashMap.newKeySet();
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(args[2]);
        consumer.setNamesrvAddr(args[0]);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(args[1], "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(each -> seen.add(new String(each.getBody(), StandardCharsets.UTF_8)));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(Long.parseLong(args[4]));
        while (seen.size() < count && System.nanoTime() < deadline) {
            Thread.sleep(20);
        }
        System.out.println("received " + seen.size());
        System.exit(0);
    }
}
