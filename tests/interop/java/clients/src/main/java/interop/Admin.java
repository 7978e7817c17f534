package interop;

import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.List;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin commands one after the other, so that they share the start of one Java process: one per line of the input,
 * fields separated by tabs. The first is a number of lines: a command that goes on for ever is interrupted once it has
 * printed so many, 0 lets it end by itself. The others are its arguments. After what a command prints comes a line with
 * the end-of-transmission sign; one that does not end in time is said to be where it stands.
 */
public class Admin {
    private static final long MILLIS_MAX = 120_000;
    private static final long MILLIS_BETWEEN_LOOKS = 20;
    private static final PrintStream OUT = System.out;

    /** They come anew each time: one that sent a message keeps its producer, which is closed. */
    private static void run(String[] words) {
        commands().clear();
        MQAdminStartup.main0(words, null);
    }

    /** The list of all commands, which has another name in 5.x. */
    private static List<?> commands() {
        for (Field field : MQAdminStartup.class.getDeclaredFields()) {
            if (field.getType() == List.class) {
                try {
                    field.setAccessible(true);
                    return (List<?>) field.get(null);
                } catch (IllegalAccessException error) {
                    throw new IllegalStateException(error);
                }
            }
        }
        throw new IllegalStateException("mqadmin has no list of commands");
    }

    /** A client that shuts down waits for its thread of events, which looks up to 3 s for an event that never comes. */
    private static void wakeThreadOfEvents(Thread command) {
        boolean shutsDown = Arrays.stream(command.getStackTrace())
            .anyMatch(frame -> frame.getClassName().endsWith("ServiceThread") && frame.getMethodName().equals("shutdown"));
        if (shutsDown) {
            Thread.getAllStackTraces().keySet().stream()
                .filter(each -> each.getName().startsWith("NettyEventExecutor"))
                .forEach(Thread::interrupt);
        }
    }

    /** What a command prints; beyond a number of lines the command is interrupted, and the rest is left out. */
    private static class Printed extends ByteArrayOutputStream {
        private final Thread printing;
        private int left;

        Printed(Thread printing, int lines) {
            this.printing = printing;
            this.left = lines > 0 ? lines : Integer.MAX_VALUE;
        }

        @Override
        public synchronized void write(int octet) {
            if (left == 0) {
                return;
            }
            super.write(octet);
            if (octet == '\n' && --left == 0) {
                printing.interrupt();
            }
        }

        @Override
        public synchronized void write(byte[] octets, int from, int count) {
            for (int i = from; i < from + count; i++) {
                write(octets[i]);
            }
        }
    }

    private static void run(int lines, String[] words) throws Exception {
        Thread thread = new Thread(() -> run(words), "mqadmin");
        thread.setDaemon(true);
        Printed printed = new Printed(thread, lines);
        PrintStream stream = new PrintStream(printed, true, "UTF-8");
        System.setOut(stream);
        System.setErr(stream);
        thread.start();
        for (long end = System.currentTimeMillis() + MILLIS_MAX; thread.isAlive() && System.currentTimeMillis() < end; ) {
            thread.join(MILLIS_BETWEEN_LOOKS);
            wakeThreadOfEvents(thread);
        }
        if (thread.isAlive()) {
            stream.println("mqadmin did not end: " + Arrays.toString(thread.getStackTrace()));
            thread.interrupt();
        }
        stream.flush();
        OUT.write(printed.toByteArray());
    }

    public static void main(String[] args) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split("\t");
            run(Integer.parseInt(words[0]), Arrays.copyOfRange(words, 1, words.length));
            OUT.println();
            OUT.println('\u0004');
            OUT.flush();
        }
        System.exit(0);
    }
}
