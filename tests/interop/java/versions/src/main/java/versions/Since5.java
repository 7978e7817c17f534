package versions;

import static versions.Scenarios.admin;
import static versions.Scenarios.broker;
import static versions.Scenarios.check;
import static versions.Scenarios.consumer;
import static versions.Scenarios.group;
import static versions.Scenarios.topic;

import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;

/** What tools of 5.x ask first: the settings of one topic, and of one group. */
public class Since5 implements Scenarios.Source {
    @Override
    public void add(Map<String, Scenarios.Scenario> scenarios) {
        scenarios.put("settings", Since5::settings);
    }

    private static void settings() throws Exception {
        String topic = topic("Settings", 3);
        check(admin.examineTopicConfig(broker, topic).getWriteQueueNums() == 3, "the settings of a topic");
        DefaultMQPushConsumer consumer = consumer("settings");
        consumer.subscribe(topic, "*");
        Scenarios.collect(consumer);
        Scenarios.eventually(() -> admin.examineSubscriptionGroupConfig(broker, group("settings")).getRetryMaxTimes() == 16,
            "the settings of a group");
        consumer.shutdown();
    }
}
