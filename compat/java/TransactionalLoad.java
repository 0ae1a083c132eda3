import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Random;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ApplicationRecoverableException;
import org.apache.kafka.common.errors.AuthorizationException;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.OutOfOrderSequenceException;
import org.apache.kafka.common.errors.ProducerFencedException;
import org.apache.kafka.common.errors.TimeoutException;
import org.apache.kafka.common.errors.UnsupportedVersionException;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Transactions one after the other by several of Kafka's own producers, some usurped by a second
 * instance of their name, until standard input ends. Every step is told on standard output before it
 * is taken, words separated by tabs, so that what a killed process did is known:
 *
 *   begin NAME NUMBER OFFSETS PARTITIONS   a transaction; whether the group's offset is in it
 *   end NAME NUMBER ENDING                 open, unknown, aborted, committed (TxnHistory's words)
 *   said MESSAGE                           what a producer was told by an exception
 *
 * Arguments: bootstrap servers, topic, its partitions, a seed, share of transactions with offsets,
 * transaction.timeout.ms, and names of producers with the number of their last transaction,
 * NAME=NUMBER.
 */
public class TransactionalLoad {
    private static final int CALL_MS = 8_000;

    private static String bootstrap;
    private static String topic;
    private static int partitions;
    private static double offsetsShare;
    private static int timeoutMs;
    private static volatile boolean isStopped;

    /** The producer is of no use any more; another one takes its name. */
    private static class Broken extends Exception {}

    public static void main(String[] given) throws Exception {
        bootstrap = given[0];
        topic = given[1];
        partitions = Integer.parseInt(given[2]);
        long seed = Long.parseLong(given[3]);
        offsetsShare = Double.parseDouble(given[4]);
        timeoutMs = Integer.parseInt(given[5]);
        List<Thread> threads = new ArrayList<>();
        for (int i = 6; i < given.length; i++) {
            String[] pair = given[i].split("=");
            Random chance = new Random(seed * 100 + i);
            Instance named = new Instance(pair[0], Integer.parseInt(pair[1]), chance);
            threads.add(new Thread(named::run, pair[0]));
        }
        for (Thread each : threads) each.start();
        while (System.in.read() >= 0) { }
        isStopped = true;
        for (Thread each : threads) each.join();
        System.exit(0);
    }

    private static synchronized void tell(Object... words) {
        String line = List.of(words).stream()
            .map(word -> String.valueOf(word).replaceAll("\\s+", " "))
            .collect(Collectors.joining("\t"));
        System.out.println(line);
        System.out.flush();
    }

    private static void tellOf(Exception raised) {
        Throwable cause = raised.getCause() == null ? raised : raised.getCause();
        String said = raised.getClass().getSimpleName() + ", " + cause.getClass().getSimpleName()
            + ": " + cause.getMessage();
        tell("said", said.substring(0, Math.min(said.length(), 150)));
    }

    /** What only another producer gets out of, by the class's documentation. */
    private static boolean isFatal(Exception raised) {
        return raised instanceof ProducerFencedException
            || raised instanceof InvalidProducerEpochException
            || raised instanceof ApplicationRecoverableException
            || raised instanceof OutOfOrderSequenceException
            || raised instanceof UnsupportedVersionException
            || raised instanceof AuthorizationException
            || raised instanceof IllegalStateException;
    }

    private static class Instance {
        private final String name;
        private final Random chance;
        private int number;

        Instance(String name, int number, Random chance) {
            this.name = name;
            this.number = number;
            this.chance = chance;
        }

        void run() {
            while (!isStopped) {
                Producer<String, String> producer = start();
                if (producer == null) continue;
                try {
                    while (!isStopped) {
                        transact(producer);
                        // Another instance comes up while this one has something open.
                        if (chance.nextDouble() < 0.05) {
                            leaveOpen(producer);
                            producer = null;
                            break;
                        }
                    }
                } catch (Broken broken) {
                    // has told why
                } finally {
                    if (producer != null) producer.close(Duration.ZERO);
                }
            }
        }

        private Producer<String, String> start() {
            Properties settings = new Properties();
            settings.put("bootstrap.servers", bootstrap);
            settings.put("transactional.id", name);
            settings.put("transaction.timeout.ms", timeoutMs);
            settings.put("max.block.ms", CALL_MS);
            settings.put("delivery.timeout.ms", 10_000);
            settings.put("request.timeout.ms", 3_000);
            settings.put("retry.backoff.ms", 20);
            settings.put("retry.backoff.max.ms", 200);
            settings.put("reconnect.backoff.ms", 20);
            settings.put("reconnect.backoff.max.ms", 200);
            settings.put("linger.ms", 1);
            Producer<String, String> producer =
                new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
            while (!isStopped) {
                try {
                    producer.initTransactions();
                    return producer;
                } catch (TimeoutException late) {
                    tellOf(late);
                } catch (KafkaException | IllegalStateException refused) {
                    tellOf(refused);
                    break;
                }
            }
            producer.close(Duration.ZERO);
            return null;
        }

        private void transact(Producer<String, String> producer) throws Broken {
            boolean hasOffsets = chance.nextDouble() < offsetsShare;
            int[] chosen = begin(hasOffsets, 12);
            boolean commits = chance.nextDouble() < 0.75;
            try {
                producer.beginTransaction();
                send(producer, chosen);
                if (chance.nextDouble() < 0.3) producer.flush();
                if (hasOffsets) {
                    producer.sendOffsetsToTransaction(
                        Map.of(new TopicPartition(topic, 0), new OffsetAndMetadata(number + 1)),
                        new ConsumerGroupMetadata(name + "'s group"));
                }
            } catch (KafkaException | IllegalStateException raised) {
                tellOf(raised);
                if (isFatal(raised)) throw new Broken(); // it stays open
                commits = false;
            }
            end(producer, commits);
        }

        /** Tells of the next transaction, and gives the partition of each of its records. */
        private int[] begin(boolean hasOffsets, int atMost) {
            number++;
            int[] chosen = chance.ints(1 + chance.nextInt(atMost), 0, partitions).toArray();
            List<String> shown = new ArrayList<>();
            for (int partition : chosen) shown.add(String.valueOf(partition));
            tell("begin", name, number, hasOffsets ? 1 : 0, String.join(",", shown));
            return chosen;
        }

        private void send(Producer<String, String> producer, int[] chosen) {
            for (int index = 0; index < chosen.length; index++) {
                String value = name + "|" + number + "|" + index;
                producer.send(new ProducerRecord<>(topic, chosen[index], null, value));
            }
        }

        /** Until there is an answer, or none is to be had. */
        private void end(Producer<String, String> producer, boolean commits) throws Broken {
            boolean isUnsure = false; // a commit may have been sent
            long deadline = System.nanoTime() + 3_000_000L * CALL_MS;
            while (true) {
                try {
                    if (commits) {
                        tell("end", name, number, "unknown");
                        producer.commitTransaction();
                        tell("end", name, number, "committed");
                    } else {
                        producer.abortTransaction();
                        tell("end", name, number, isUnsure ? "unknown" : "aborted");
                    }
                    return;
                } catch (TimeoutException late) {
                    tellOf(late);
                    isUnsure |= commits;
                    if (System.nanoTime() > deadline) throw new Broken();
                } catch (KafkaException | IllegalStateException raised) {
                    tellOf(raised);
                    // What is not fatal, it says only of a commit that has certainly not happened.
                    if (isFatal(raised) || !commits) throw new Broken();
                    commits = false;
                }
            }
        }

        /** Written, and not ended: a successor's initTransactions has to abort it. */
        private void leaveOpen(Producer<String, String> producer) {
            int[] chosen = begin(false, 6);
            int left = number;
            try {
                producer.beginTransaction();
                send(producer, chosen);
                if (chance.nextDouble() < 0.5) producer.flush();
            } catch (KafkaException | IllegalStateException raised) {
                tellOf(raised);
            }
            long afterMs = chance.nextInt(500);
            // It wakes up later and goes on as if nothing were: fenced, or just before it is.
            Thread zombie = new Thread(() -> {
                try {
                    Thread.sleep(afterMs);
                    tell("end", name, left, "unknown");
                    producer.commitTransaction();
                    tell("end", name, left, "committed");
                } catch (KafkaException | IllegalStateException | InterruptedException raised) {
                    // fenced, as it should be
                }
                producer.close(Duration.ZERO);
            });
            zombie.setDaemon(true);
            zombie.start();
        }
    }
}
