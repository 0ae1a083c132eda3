import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;

/**
 * Sends messages as fast as they are taken, batched as the client does by itself, and waits for all
 * receipts. A sixth more go first, unmeasured. Arguments: URL TOPIC MESSAGES SIZE BATCHING. One line
 * of JSON.
 */
public class PulsarProducer {
    public static void main(String[] args) throws Exception {
        int messages = Integer.parseInt(args[2]);
        byte[] payload = new byte[Integer.parseInt(args[3])];
        new Random(1).nextBytes(payload);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build();
                Producer<byte[]> producer = client.newProducer()
                        .topic(args[1])
                        .enableBatching(Boolean.parseBoolean(args[4]))
                        .blockIfQueueFull(true)
                        .sendTimeout(10, TimeUnit.MINUTES) // 64 MB are on their way, however slow
                        .create()) {
            int first = messages / 6;
            send(producer, payload, first);
            long begun = System.nanoTime();
            send(producer, payload, messages);
            double seconds = (System.nanoTime() - begun) / 1e9;
            System.out.printf("{\"records\": %d, \"sent\": %d, \"seconds\": %.4f}%n",
                    messages, messages + first, seconds);
        }
    }

    private static void send(Producer<byte[]> producer, byte[] payload, int count) throws Exception {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        for (int i = 0; i < count; i++) {
            producer.sendAsync(payload).whenComplete((id, failure) -> {
                if (failure != null) failed.set(failure);
            });
        }
        producer.flush();
        if (failed.get() != null) throw new IllegalStateException(failed.get());
    }
}
