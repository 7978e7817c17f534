package interop;

import com.alibaba.fastjson.JSON;
import com.alibaba.fastjson.JSONArray;
import com.alibaba.fastjson.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;
import org.apache.rocketmq.filter.util.BloomFilter;

/**
 * Evaluates SQL92 expressions as the broker does: each line of the input is {"expression", "messages": [properties]}, each
 * line of the output "refused" or a word per message: true, false, null, failed. A line {"bloom"} is answered with the
 * bits of that text in the default Bloom filter.
 */
public class Selectors {
    public static void main(String[] arguments) throws Exception {
        PrintStream output = new PrintStream(System.out, false, "UTF-8");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JSONObject question = JSON.parseObject(line);
            if (question.containsKey("bloom")) {
                int[] positions = BloomFilter.createByFn(20, 32).calcBitPositions(question.getString("bloom"));
                output.println(Arrays.toString(positions));
                continue;
            }
            output.println(answer(question.getString("expression"), question.getJSONArray("messages")));
        }
        output.flush();
    }

    private static String answer(String text, JSONArray messages) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(text);
        } catch (Throwable refused) {
            return "refused";
        }
        StringBuilder words = new StringBuilder();
        for (int index = 0; index < messages.size(); index++) {
            Map<String, String> properties = new HashMap<>();
            JSONObject message = messages.getJSONObject(index);
            for (String name : message.keySet()) {
                properties.put(name, message.getString(name));
            }
            words.append(index == 0 ? "" : " ").append(evaluate(expression, properties));
        }
        return words.toString();
    }

    private static String evaluate(Expression expression, Map<String, String> properties) {
        try {
            return String.valueOf(expression.evaluate(new MessageEvaluationContext(properties)));
        } catch (Throwable failed) {
            return "failed";
        }
    }
}
