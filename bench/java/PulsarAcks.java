import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Acknowledges the messages of a Shared subscription one by one, and waits for the receipts of all.
 * GROUPED: the client puts acknowledgements of 100 ms into one command, as it does by itself; else
 * each is a command of its own. The messages are unbatched, so each is an entry. A sixth more come
 * first, unmeasured. Arguments: URL TOPIC MESSAGES SIZE GROUPED. One line of JSON.
 */
public class PulsarAcks {
    public static void main(String[] args) throws Exception {
        int messages = Integer.parseInt(args[2]);
        byte[] payload = new byte[Integer.parseInt(args[3])];
        int first = messages / 6;
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            ConsumerBuilder<byte[]> builder = client.newConsumer()
                    .topic(args[1])
                    .subscriptionName("bench")
                    .subscriptionType(SubscriptionType.Shared)
                    .isAckReceiptEnabled(true);
            if (!Boolean.parseBoolean(args[4])) builder.acknowledgmentGroupTime(0, TimeUnit.SECONDS);
            builder.subscribe().close(); // from here on all is kept for it
            try (Producer<byte[]> producer = client.newProducer()
                    .topic(args[1]).enableBatching(false).blockIfQueueFull(true)
                    .sendTimeout(10, TimeUnit.MINUTES).create()) {
                for (int i = 0; i < messages + first; i++) producer.sendAsync(payload);
                producer.flush();
            }
            try (Consumer<byte[]> consumer = builder.subscribe()) {
                acknowledge(consumer, first);
                long begun = System.nanoTime();
                acknowledge(consumer, messages);
                double seconds = (System.nanoTime() - begun) / 1e9;
                System.out.printf("{\"records\": %d, \"acks\": %d, \"seconds\": %.4f}%n",
                        messages + first, messages, seconds);
            }
        }
    }

    private static void acknowledge(Consumer<byte[]> consumer, int count) throws Exception {
        List<CompletableFuture<Void>> receipts = new ArrayList<>(count);
        for (int i = 0; i < count; i++) {
            Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
            if (message == null) throw new IllegalStateException(i + " came");
            receipts.add(consumer.acknowledgeAsync(message));
        }
        CompletableFuture.allOf(receipts.toArray(new CompletableFuture[0])).get(120, TimeUnit.SECONDS);
    }
}
