package interop;

import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.common.message.MessageExt;

/** Prints "body", a tab and the body of each message of a topic, one a line: Bodies NAMESRV TOPIC. The client logs beside it. */
public class Bodies {
    private Bodies() {
    }

    public static void main(String[] args) throws Exception {
        Scenario.namesrv = args[0];
        DefaultMQPullConsumer consumer = Scenario.puller("java-bodies");
        StringBuilder bodies = new StringBuilder();
        for (MessageExt message : Scenario.all(consumer, args[1])) {
            bodies.append("body\t").append(Scenario.text(message)).append('\n');
        }
        consumer.shutdown();
        System.out.print("\n" + bodies);
        System.out.flush();
        System.exit(0);
    }
}
