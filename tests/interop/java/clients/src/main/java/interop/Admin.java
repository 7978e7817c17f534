package interop;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/**
 * mqadmin commands one after the other, so that they share the start of one Java process: one per line of the
 * input, arguments separated by tabs. After what a command prints comes a line with the end-of-transmission sign.
 */
public class Admin {
    private static class Commands extends MQAdminStartup {
        /** They come anew each time: one that sent a message keeps its producer, which is closed. */
        static void run(String[] words) {
            subCommandList.clear();
            main0(words, null);
        }
    }

    public static void main(String[] args) throws Exception {
        System.setErr(System.out);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Commands.run(line.split("\t"));
            System.out.println();
            System.out.println('\u0004');
            System.out.flush();
        }
        System.exit(0);
    }
}
