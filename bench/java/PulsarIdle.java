import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionType;

/**
 * Makes subscriptions on the partitions of a topic, the same number on each, then connects consumers
 * to some of them, spread over as many connections as the client's pool makes of it, and keeps them.
 * Goes on with each line of its input. Arguments: URL TOPIC PARTITIONS SUBSCRIPTIONS CONSUMERS. A
 * line of JSON after each step.
 */
public class PulsarIdle {
    public static void main(String[] args) throws Exception {
        int partitions = Integer.parseInt(args[2]);
        int subscriptions = Integer.parseInt(args[3]);
        int consumers = Integer.parseInt(args[4]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0])
                .connectionsPerBroker(consumers).maxConcurrentLookupRequests(100).build()) {
            String topic = args[1];
            long begun = System.nanoTime();
            Semaphore open = new Semaphore(50);
            List<CompletableFuture<Void>> made = new ArrayList<>();
            try (PulsarClient one = PulsarClient.builder().serviceUrl(args[0]).build()) {
                for (int i = 0; i < subscriptions; i++) {
                    open.acquire();
                    made.add(subscribe(one, topic, i, partitions)
                            .thenCompose(Consumer::closeAsync)
                            .whenComplete((done, failed) -> open.release()));
                }
                CompletableFuture.allOf(made.toArray(new CompletableFuture[0])).get(600, TimeUnit.SECONDS);
            }
            double subscribed = (System.nanoTime() - begun) / 1e9;
            System.out.printf("{\"subscribe_s\": %.3f}%n", subscribed);
            System.in.read();
            begun = System.nanoTime();
            List<Consumer<byte[]>> connected = new ArrayList<>();
            for (int i = 0; i < consumers; i++) connected.add(subscribe(client, topic, i, partitions).get());
            System.out.printf("{\"connect_s\": %.3f}%n", (System.nanoTime() - begun) / 1e9);
            System.in.read();
        }
    }

    private static CompletableFuture<Consumer<byte[]>> subscribe(
            PulsarClient client, String topic, int number, int partitions) {
        return client.newConsumer()
                .topic(topic + "-partition-" + number % partitions)
                .subscriptionName("idle-" + number / partitions)
                .subscriptionType(SubscriptionType.Shared)
                .subscribeAsync();
    }
}
