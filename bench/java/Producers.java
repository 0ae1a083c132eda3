import java.util.Arrays;
import org.apache.kafka.tools.ProducerPerformance;

/** Runs Kafka's ProducerPerformance several times at once in one JVM: "@" becomes the number. */
public class Producers {
    public static void main(String[] args) throws Exception {
        Thread[] producers = new Thread[Integer.parseInt(args[0])];
        for (int i = 0; i < producers.length; i++) {
            String number = Integer.toString(i);
            String[] own = Arrays.stream(args).skip(1).map(a -> a.replace("@", number)).toArray(String[]::new);
            producers[i] = new Thread(() -> {
                try {
                    ProducerPerformance.main(own);
                } catch (Exception failed) {
                    failed.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
        }
        for (Thread producer : producers) producer.start();
        for (Thread producer : producers) producer.join();
    }
}
