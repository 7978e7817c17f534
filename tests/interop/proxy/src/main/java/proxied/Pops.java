package proxied;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/**
 * Pops ENDPOINT KIND TOPIC GROUP COUNT: receive messages by gRPC as a simple or as a push consumer. The first one fails once: a
 * simple consumer changes its invisible time, a push consumer says FAILURE. Prints "again ATTEMPT" when it comes again, and at
 * the end "received COUNT".
 */
public class Pops {
    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0]).setRequestTimeout(Duration.ofSeconds(10)).enableSsl(false).build();
        FilterExpression all = new FilterExpression();
        int count = Integer.parseInt(args[4]);
        Set<String> done = ConcurrentHashMap.newKeySet();
        Set<String> failed = ConcurrentHashMap.newKeySet();
        if (args[1].equals("push")) {
            try (PushConsumer consumer = provider.newPushConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(args[3]).setSubscriptionExpressions(Collections.singletonMap(args[2], all))
                .setMessageListener(message -> handle(message, failed, done) ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE)
                .build()) {
                while (done.size() < count) {
                    Thread.sleep(50);
                }
            }
        } else {
            try (SimpleConsumer consumer = provider.newSimpleConsumerBuilder().setClientConfiguration(configuration)
                .setConsumerGroup(args[3]).setSubscriptionExpressions(Collections.singletonMap(args[2], all))
                .setAwaitDuration(Duration.ofSeconds(10)).build()) {
                while (done.size() < count) {
                    List<MessageView> messages = consumer.receive(16, Duration.ofSeconds(30));
                    for (MessageView message : messages) {
                        if (handle(message, failed, done)) {
                            consumer.ack(message);
                        } else {
                            consumer.changeInvisibleDuration(message, Duration.ofSeconds(1));
                        }
                    }
                }
            }
        }
        System.out.println("received " + new HashSet<>(done).size());
        System.exit(0);
    }

    private static synchronized boolean handle(MessageView message, Set<String> failed, Set<String> done) {
        String text = StandardCharsets.UTF_8.decode(message.getBody()).toString();
        if (failed.isEmpty() && failed.add(text)) {
            return false;
        }
        if (failed.contains(text)) {
            System.out.println("again " + message.getDeliveryAttempt());
        }
        done.add(text);
        return true;
    }
}
