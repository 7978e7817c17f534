package versions;

import static versions.Scenarios.bytes;
import static versions.Scenarios.check;
import static versions.Scenarios.collect;
import static versions.Scenarios.consumer;
import static versions.Scenarios.eventually;
import static versions.Scenarios.group;
import static versions.Scenarios.known;
import static versions.Scenarios.range;
import static versions.Scenarios.saw;
import static versions.Scenarios.text;
import static versions.Scenarios.texts;
import static versions.Scenarios.topic;

import java.util.HashSet;
import java.util.Map;
import java.util.Set;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.PullStatus;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** What came with 4.3.0: transactions with a listener, a pull by an expression. */
public class Since43 implements Scenarios.Source {
    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("transactions", Since43::transactions);
        scenarios.put("sql92_pull", Since43::sql92Pull);
    }

    /** The first thing that a group does. The client does not dare before a heartbeat has told it the broker's version. */
    private static void sql92Pull() throws Exception {
        String topic = Basics.priced("SqlPull", 1);
        DefaultMQPullConsumer consumer = Basics.puller("sql-pull");
        MessageQueue queue = consumer.fetchSubscribeMessageQueues(topic).iterator().next();
        PullResult[] found = {null};
        int[] tries = {0};
        eventually(() -> {
            tries[0]++;
            found[0] = consumer.pull(queue, MessageSelector.bySql("price > 36"), 0, 64);
            // a Java broker shows messages a little after it acknowledged them
            return found[0].getMaxOffset() == Basics.MANY;
        }, "a pull by SQL92");
        System.err.println("sql92_pull tried " + tries[0] + " times");
        check(found[0].getPullStatus() == PullStatus.FOUND, found[0].toString());
        check(texts(found[0].getMsgFoundList()).equals(range("p", 37, Basics.MANY)), "saw " + texts(found[0].getMsgFoundList()));
        consumer.shutdown();
    }

    private static void transactions() throws Exception {
        String topic = topic("Tran");
        TransactionMQProducer sender = known(new TransactionMQProducer(group("tran-producer")));
        sender.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object arg) {
                String body = text(message);
                return body.startsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE
                    : body.startsWith("rollback") ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return text(message).contains("commit") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
            }
        });
        sender.start();
        Set<String> committed = new HashSet<>();
        for (int i = 0; i < 12; i++) {
            String body = new String[] {"commit", "rollback", "later commit", "later rollback"}[i % 4] + i;
            SendResult result = sender.sendMessageInTransaction(new Message(topic, bytes(body)), null);
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
