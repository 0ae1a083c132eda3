import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;

/**
 * Reads a topic whole from its beginning with a new Exclusive subscription, acknowledging each
 * message; as often as is said, and the last time counts. Arguments: URL TOPIC MESSAGES TIMES. One
 * line of JSON.
 */
public class PulsarConsumer {
    public static void main(String[] args) throws Exception {
        long messages = Long.parseLong(args[2]);
        int times = Integer.parseInt(args[3]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0]).build()) {
            double firstSeconds = 0;
            for (int time = 1; time <= times; time++) {
                long bytes = 0;
                double seconds;
                try (Consumer<byte[]> consumer = client.newConsumer()
                        .topic(args[1])
                        .subscriptionName("bench-" + time)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                        .subscribe()) {
                    long begun = System.nanoTime();
                    for (long count = 0; count < messages; count++) {
                        Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
                        if (message == null) throw new IllegalStateException(count + " came");
                        bytes += message.size();
                        consumer.acknowledgeAsync(message);
                    }
                    seconds = (System.nanoTime() - begun) / 1e9;
                    if (time == 1) firstSeconds = seconds;
                }
                if (time == times) {
                    System.out.printf(
                            "{\"records\": %d, \"bytes\": %d, \"seconds\": %.4f, \"first_seconds\": %.4f}%n",
                            messages, bytes, seconds, firstSeconds);
                }
            }
        }
    }
}
