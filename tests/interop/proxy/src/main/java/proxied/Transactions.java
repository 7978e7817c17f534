package proxied;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Transactions ENDPOINT TOPIC: a transaction that is committed, and one that is rolled back, by gRPC. Prints "ended" at the end. */
public class Transactions {
    public static void main(String[] args) throws Exception {
        ClientServiceProvider provider = ClientServiceProvider.loadService();
        ClientConfiguration configuration = ClientConfiguration.newBuilder()
            .setEndpoints(args[0]).setRequestTimeout(Duration.ofSeconds(10)).enableSsl(false).build();
        try (Producer producer = provider.newProducerBuilder().setClientConfiguration(configuration).setTopics(args[1])
            .setTransactionChecker(message -> TransactionResolution.UNKNOWN).build()) {
            for (String what : new String[] {"commit", "rollback"}) {
                Transaction transaction = producer.beginTransaction();
                producer.send(provider.newMessageBuilder().setTopic(args[1]).setBody(what.getBytes(StandardCharsets.UTF_8)).build(),
                    transaction);
                if (what.equals("commit")) {
                    transaction.commit();
                } else {
                    transaction.rollback();
                }
            }
        }
        System.out.println("ended");
        System.exit(0);
    }
}
