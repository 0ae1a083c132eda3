import java.util.Arrays;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Transactions of MESSAGES messages and one acknowledgement each, so many of them IN_FLIGHT: each
 * takes a message of a Shared subscription, sends as many to another topic, and commits. A sixth
 * more come first, unmeasured. Arguments: URL TOPIC TRANSACTIONS IN_FLIGHT MESSAGES SIZE. One line of
 * JSON; latencies in ms: of a commit alone, and of a transaction from its begin to its end.
 */
public class PulsarTransactions {
    public static void main(String[] args) throws Exception {
        String url = args[0], topic = args[1];
        int transactions = Integer.parseInt(args[2]), inFlight = Integer.parseInt(args[3]);
        int messages = Integer.parseInt(args[4]);
        byte[] payload = new byte[Integer.parseInt(args[5])];
        int first = Math.max(transactions / 6, 1);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(url).enableTransaction(true).build();
                Consumer<byte[]> consumer = client.newConsumer().topic(topic)
                        .subscriptionName("bench").subscriptionType(SubscriptionType.Shared)
                        .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe();
                Producer<byte[]> source = client.newProducer().topic(topic).enableBatching(false)
                        .blockIfQueueFull(true).sendTimeout(0, TimeUnit.SECONDS).create();
                Producer<byte[]> sink = client.newProducer().topic(topic + "-sink")
                        .blockIfQueueFull(true).sendTimeout(0, TimeUnit.SECONDS)
                        .enableBatching(messages > 1).create()) {
            for (int i = 0; i < transactions + first; i++) source.sendAsync(payload);
            source.flush();
            run(client, consumer, sink, payload, first, inFlight, messages);
            long begun = System.nanoTime();
            long[][] took = run(client, consumer, sink, payload, transactions, inFlight, messages);
            double seconds = (System.nanoTime() - begun) / 1e9;
            for (long[] each : took) Arrays.sort(each);
            System.out.printf("{\"records\": %d, \"transactions\": %d, \"seconds\": %.4f,"
                    + " \"commit_p50_ms\": %.3f, \"commit_p99_ms\": %.3f, \"p50_ms\": %.3f, \"p99_ms\": %.3f}%n",
                    transactions + first, transactions, seconds, quantile(took[0], 0.5),
                    quantile(took[0], 0.99), quantile(took[1], 0.5), quantile(took[1], 0.99));
        }
    }

    private static double quantile(long[] sorted, double part) {
        return sorted[(int) Math.min(sorted.length - 1, part * sorted.length)] / 1e6;
    }

    private static long[][] run(PulsarClient client, Consumer<byte[]> consumer, Producer<byte[]> sink,
            byte[] payload, int count, int inFlight, int messages) throws Exception {
        long[][] took = new long[2][count];
        Semaphore room = new Semaphore(inFlight);
        AtomicInteger place = new AtomicInteger();
        CompletableFuture<?>[] all = new CompletableFuture<?>[count];
        for (int i = 0; i < count; i++) {
            room.acquire();
            Message<byte[]> message = consumer.receive(60, TimeUnit.SECONDS);
            if (message == null) throw new IllegalStateException(i + " came");
            long begun = System.nanoTime();
            all[i] = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build()
                    .thenCompose(txn -> work(txn, consumer, sink, payload, message, messages))
                    .thenCompose(txn -> {
                        long committing = System.nanoTime();
                        return txn.commit().thenRun(() -> {
                            long now = System.nanoTime();
                            int at = place.getAndIncrement();
                            took[0][at] = now - committing;
                            took[1][at] = now - begun;
                        });
                    })
                    .whenComplete((done, failed) -> room.release());
        }
        CompletableFuture.allOf(all).get(120, TimeUnit.SECONDS);
        return took;
    }

    private static CompletableFuture<Transaction> work(Transaction txn, Consumer<byte[]> consumer,
            Producer<byte[]> sink, byte[] payload, Message<byte[]> message, int messages) {
        CompletableFuture<?>[] parts = new CompletableFuture<?>[messages + 1];
        for (int i = 0; i < messages; i++) parts[i] = sink.newMessage(txn).value(payload).sendAsync();
        parts[messages] = consumer.acknowledgeAsync(message.getMessageId(), txn);
        return CompletableFuture.allOf(parts).thenApply(done -> txn);
    }
}
