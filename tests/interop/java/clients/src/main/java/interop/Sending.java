package interop;

import java.io.FileOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;

/**
 * A producer that sends one message after the other, each again until it is acknowledged, while brokers fail: Sending
 * NAMESRV TOPIC FILE [ROUTE_MS SEND_MS]. Without times the client's defaults count. It ends when its input does. To the
 * file it appends "sent java BODY QUEUE OFFSET MESSAGE_ID MS" (Unix time) and "failed java REASON".
 */
public class Sending {
    private static final int PAUSE_MS = 10;

    public static void main(String[] args) throws Exception {
        FileOutputStream file = new FileOutputStream(args[2], true);
        DefaultMQProducer producer = new DefaultMQProducer("sending-java");
        producer.setNamesrvAddr(args[0]);
        if (args.length > 4) {
            producer.setPollNameServerInterval(Integer.parseInt(args[3]));
            producer.setSendMsgTimeout(Integer.parseInt(args[4]));
            // A heartbeat to a master that stands still holds up all questions for routes.
            producer.setMqClientApiTimeout(Integer.parseInt(args[4]));
        }
        producer.start();
        Thread sender = new Thread(() -> {
            for (int number = 0; ; ) {
                String body = "java" + number;
                try {
                    SendResult result = producer.send(new Message(args[1], body.getBytes(StandardCharsets.UTF_8)));
                    if (result.getSendStatus() == SendStatus.SEND_OK) {
                        append(file, "sent java " + body + " " + result.getMessageQueue().getQueueId() + " "
                            + result.getQueueOffset() + " " + result.getOffsetMsgId() + " " + System.currentTimeMillis());
                        number++;
                    } else {
                        append(file, "failed java " + result.getSendStatus());
                    }
                    Thread.sleep(PAUSE_MS);
                } catch (InterruptedException e) {
                    return;
                } catch (Exception e) {
                    append(file, "failed java " + e.toString().replace('\n', ' '));
                    try {
                        Thread.sleep(PAUSE_MS);
                    } catch (InterruptedException interrupted) {
                        return;
                    }
                }
            }
        });
        sender.setDaemon(true);
        sender.start();
        while (System.in.read() >= 0) {
            // what comes in means nothing but that it goes on
        }
        System.exit(0);
    }

    private static void append(FileOutputStream file, String line) {
        try {
            file.write((line + "\n").getBytes(StandardCharsets.UTF_8));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }
}
