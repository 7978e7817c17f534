package interop;

import java.util.List;
import org.apache.rocketmq.broker.BrokerStartup;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.namesrv.NamesrvStartup;

/**
 * Loads the classes of all that is run of these libraries, for an archive of them: Classes NAMESRV NAMESRV_FILE BROKER_FILE. It is a name
 * server and a broker with these files of settings, a client of them, and then {@link Admin}.
 */
public class Classes {
    private static final int BODY_BYTES = 10_000;

    private Classes() {
    }

    public static void main(String[] args) throws Exception {
        NamesrvStartup.main0(new String[] {"-c", args[1]});
        BrokerStartup.start(BrokerStartup.createBrokerController(new String[] {"-c", args[2]}));
        Scenario.namesrv = args[0];
        Scenario.producer = Scenario.patient(new DefaultMQProducer("java-classes"));
        Scenario.producer.start();
        // large enough to be compressed
        Scenario.put("JavaClasses", new String(new char[BODY_BYTES]), 2);
        DefaultMQPushConsumer consumer = Scenario.consumer("java-classes");
        consumer.subscribe("JavaClasses", "*");
        List<MessageExt> seen = Scenario.collect(consumer);
        Scenario.eventually(() -> seen.size() == 2, "both messages");
        consumer.shutdown();
        Scenario.producer.shutdown();
        Admin.main(new String[0]);
    }
}
