package versions;

import static versions.Scenarios.bytes;
import static versions.Scenarios.check;
import static versions.Scenarios.collect;
import static versions.Scenarios.consumer;
import static versions.Scenarios.group;
import static versions.Scenarios.known;
import static versions.Scenarios.saw;
import static versions.Scenarios.text;
import static versions.Scenarios.topic;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;

/** Transactions as clients before 4.3.0 know them. */
public class Before43 implements Scenarios.Source {
    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("transactions", Before43::transactions);
    }

    private static void transactions() throws Exception {
        String topic = topic("Tran");
        TransactionMQProducer sender = known(new TransactionMQProducer(group("tran-producer")));
        sender.setTransactionCheckListener(message -> text(message).contains("commit")
            ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE);
        sender.start();
        Set<String> committed = new HashSet<>();
        for (int i = 0; i < 9; i++) {
            String body = new String[] {"commit", "rollback", "later commit"}[i % 3] + i;
            SendResult result = sender.sendMessageInTransaction(new Message(topic, bytes(body)), (message, arg) ->
                body.startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : body.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW, null);
            check(result.getSendStatus() == SendStatus.SEND_OK, result.toString());
            if (body.contains("commit")) {
                committed.add(body);
            }
        }
        DefaultMQPushConsumer consumer = consumer("tran");
        consumer.subscribe(topic, "*");
        saw(collect(consumer), committed);
        consumer.shutdown();
        sender.shutdown();
    }
}
