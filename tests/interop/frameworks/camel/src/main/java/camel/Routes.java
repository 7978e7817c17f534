package camel;

import java.util.concurrent.atomic.AtomicInteger;
import org.apache.camel.Exchange;
import org.apache.camel.ExchangePattern;
import org.apache.camel.Message;
import org.apache.camel.ProducerTemplate;
import org.apache.camel.builder.RouteBuilder;
import org.apache.camel.impl.DefaultCamelContext;

/**
 * Routes NAME_SERVER PREFIX MESSAGES: routes send that many messages, every other one with the tag "odd", and others consume them; at
 * the end come as many requests with replies. The topics PREFIX-Plain, -Request and -Reply exist already.
 *
 * <p>Prints a line for each message that a route consumed, "seen", the route, the body, the tag and the key, and one for each reply,
 * "reply", the request and the reply, separated by tabs; "ended" is the last line.
 */
public final class Routes extends RouteBuilder {
    private static final long SECONDS_MAX = 90;
    /** Camel spells its headers so. */
    private static final String HEADER = "CamelRockerMQ";

    private final String server;
    private final String prefix;
    private final AtomicInteger seen = new AtomicInteger();

    private Routes(String server, String prefix) {
        this.server = server;
        this.prefix = prefix;
    }

    private String topic(String name, String options) {
        return "rocketmq:" + prefix + "-" + name + "?namesrvAddr=" + server + "&" + options;
    }

    private void print(String route, Exchange exchange) {
        Message message = exchange.getMessage();
        System.out.println(String.join("\t", "seen", route, message.getBody(String.class), header(message, "Tag"), header(message, "Key")));
        seen.incrementAndGet();
    }

    private static String header(Message message, String name) {
        String value = message.getHeader(HEADER + name, String.class);
        return value == null ? "" : value;
    }

    @Override
    public void configure() {
        errorHandler(noErrorHandler());
        from("direct:send").to(topic("Plain", "waitForSendResult=true&producerGroup=" + prefix + "-sender"));
        from(topic("Plain", "consumerGroup=" + prefix + "-all")).process(exchange -> print("all", exchange));
        from(topic("Plain", "subscribeTags=odd&consumerGroup=" + prefix + "-odd")).process(exchange -> print("odd", exchange));
        from("direct:request").to(ExchangePattern.InOut, topic("Request", "producerGroup=" + prefix + "-asker&requestTimeoutMillis=60000"
            + "&replyToTopic=" + prefix + "-Reply&replyToConsumerGroup=" + prefix + "-replies"));
        from(topic("Request", "consumerGroup=" + prefix + "-answerer"))
            .process(this::answer)
            .to(ExchangePattern.InOnly, topic("Reply", "waitForSendResult=true&producerGroup=" + prefix + "-answers"));
    }

    /** The key says which request a reply is for. */
    private void answer(Exchange exchange) {
        print("request", exchange);
        Message message = exchange.getMessage();
        message.setHeader(HEADER + "OverrideMessageKey", header(message, "Key"));
        message.setHeader(HEADER + "OverrideTopicName", prefix + "-Reply");
        message.setBody("heard " + message.getBody(String.class));
    }

    public static void main(String[] args) throws Exception {
        int messages = Integer.parseInt(args[2]);
        Routes routes = new Routes(args[0], args[1]);
        DefaultCamelContext context = new DefaultCamelContext();
        context.addRoutes(routes);
        context.start();
        ProducerTemplate template = context.createProducerTemplate();
        for (int i = 0; i < messages; i++) {
            int number = i;
            Exchange sent = template.send("direct:send", ExchangePattern.InOnly, exchange -> {
                exchange.getMessage().setBody("m" + number);
                exchange.getMessage().setHeader(HEADER + "OverrideTag", number % 2 == 0 ? "even" : "odd");
                exchange.getMessage().setHeader(HEADER + "OverrideMessageKey", "k" + number);
            });
            if (sent.getException() != null) {
                throw sent.getException();
            }
        }
        long deadline = System.nanoTime() + SECONDS_MAX * 1_000_000_000L;
        while (routes.seen.get() < messages + messages / 2 && System.nanoTime() < deadline) {
            Thread.sleep(50);
        }
        for (int i = 0; i < messages; i++) {
            String reply = template.requestBodyAndHeader("direct:request", "q" + i, HEADER + "OverrideMessageKey", "r" + i, String.class);
            System.out.println(String.join("\t", "reply", "q" + i, reply));
        }
        context.stop();
        System.out.println("ended");
        System.exit(0);
    }
}
