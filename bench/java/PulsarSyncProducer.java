import java.util.Arrays;
import java.util.Random;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Sends messages one at a time, unbatched, each after the receipt of the last. 500 more go first,
 * unmeasured. Arguments: URL TOPIC SECONDS SIZE. One line of JSON, times in ms.
 */
public class PulsarSyncProducer {
    public static void main(String[] args) throws Exception {
        double seconds = Double.parseDouble(args[2]);
        byte[] payload = new byte[Integer.parseInt(args[3])];
        new Random(1).nextBytes(payload);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                Producer<byte[]> producer =
                        client.newProducer().topic(args[1]).enableBatching(false).create()) {
            for (int i = 0; i < 500; i++) producer.send(payload);
            double[] taken = new double[1_000_000];
            int count = 0;
            long end = System.nanoTime() + (long) (seconds * 1e9);
            while (System.nanoTime() < end && count < taken.length) {
                long begun = System.nanoTime();
                producer.send(payload);
                taken[count++] = (System.nanoTime() - begun) / 1e6;
            }
            taken = Arrays.copyOf(taken, count);
            Arrays.sort(taken);
            System.out.printf(
                    "{\"records\": %d, \"p50_ms\": %.4f, \"p99_ms\": %.4f, \"mean_ms\": %.4f}%n",
                    count + 500, taken[count / 2], taken[(int) (count * 0.99)],
                    Arrays.stream(taken).average().orElse(0));
        }
    }
}
