import java.util.Random;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;

/**
 * Sends messages as fast as they are taken, batched as the client does by itself, and waits for all
 * receipts. A sixth more go first, unmeasured. Arguments: URL TOPIC MESSAGES SIZE BATCHING, and
 * TRANSACTION_MS: where it is not 0 all is sent in transactions, of which each is committed after so
 * long, and the next begins when it is. One line of JSON.
 */
public class PulsarProducer {
    private static long committing; // nanoseconds, most of them until all receipts have come

    public static void main(String[] args) throws Exception {
        int messages = Integer.parseInt(args[2]);
        byte[] payload = new byte[Integer.parseInt(args[3])];
        new Random(1).nextBytes(payload);
        long transactionMs = Long.parseLong(args[5]);
        try (PulsarClient client = PulsarClient.builder().serviceUrl(args[0])
                        .enableTransaction(transactionMs > 0).build();
                Producer<byte[]> producer = client.newProducer()
                        .topic(args[1])
                        .enableBatching(Boolean.parseBoolean(args[4]))
                        .blockIfQueueFull(true)
                        .sendTimeout(0, TimeUnit.SECONDS) // 64 MB are on their way, however slow
                        .create()) {
            int first = messages / 6;
            send(client, producer, payload, first, transactionMs);
            long begun = System.nanoTime();
            committing = 0;
            int transactions = send(client, producer, payload, messages, transactionMs);
            double seconds = (System.nanoTime() - begun) / 1e9;
            System.out.printf(
                    "{\"records\": %d, \"sent\": %d, \"seconds\": %.4f, \"transactions\": %d, \"committing_s\": %.4f}%n",
                    messages, messages + first, seconds, transactions, committing / 1e9);
        }
    }

    private static void commit(Transaction txn) throws Exception {
        long begun = System.nanoTime();
        txn.commit().get();
        committing += System.nanoTime() - begun;
    }

    /** Returns how many transactions it took. */
    private static int send(PulsarClient client, Producer<byte[]> producer, byte[] payload, int count,
            long transactionMs) throws Exception {
        AtomicReference<Throwable> failed = new AtomicReference<>();
        Transaction txn = null;
        int transactions = 0;
        long ends = 0;
        for (int i = 0; i < count; i++) {
            if (transactionMs > 0 && (txn == null || System.nanoTime() > ends)) {
                if (txn != null) commit(txn);
                txn = client.newTransaction().withTransactionTimeout(1, TimeUnit.MINUTES).build().get();
                ends = System.nanoTime() + transactionMs * 1_000_000;
                transactions++;
            }
            TypedMessageBuilder<byte[]> message = txn == null ? producer.newMessage() : producer.newMessage(txn);
            message.value(payload).sendAsync().whenComplete((id, failure) -> {
                if (failure != null) failed.set(failure);
            });
        }
        producer.flush();
        if (txn != null) commit(txn);
        if (failed.get() != null) throw new IllegalStateException(failed.get());
        return transactions;
    }
}
