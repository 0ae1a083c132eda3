import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.OptionalLong;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerGroupMetadata;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Kafka's Java producers and consumers, driven from outside: a line per call (the call, the name of
 * the client, its arguments, separated by U+001F), a line per answer ("ok" and what came, or "error",
 * the exception's class, its cause's class, its message). Partitions are topic:number, with an offset
 * topic:number:offset.
 */
public class Clients {
    private static final String SEPARATOR = "\u001f";
    private static final Map<String, Producer<String, String>> producers = new HashMap<>();
    private static final Map<String, List<Future<RecordMetadata>>> sent = new HashMap<>();
    private static final Map<String, Consumer<String, String>> consumers = new HashMap<>();
    private static final List<ConsumerGroupMetadata> members = new ArrayList<>();

    public static void main(String[] none) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader calls =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = calls.readLine()) != null; ) {
            String[] words = line.split(SEPARATOR, -1);
            List<String> answer = new ArrayList<>();
            try {
                answer.add("ok");
                answer.addAll(call(words[0], words[1], Arrays.copyOfRange(words, 2, words.length)));
            } catch (Exception raised) {
                Throwable shown = raised instanceof ExecutionException ? raised.getCause() : raised;
                Throwable cause = shown.getCause() == null ? shown : shown.getCause();
                answer = List.of("error", shown.getClass().getSimpleName(),
                    cause.getClass().getSimpleName(), String.valueOf(shown.getMessage()));
            }
            answers.println(String.join(SEPARATOR, answer).replace("\n", " "));
            answers.flush();
        }
    }

    private static List<String> call(String call, String name, String[] given) throws Exception {
        switch (call) {
            case "property": // of the JVM
                System.setProperty(name, given[0]);
                return List.of();
            case "producer":
                producers.put(name,
                    new KafkaProducer<>(settings(given), new StringSerializer(), new StringSerializer()));
                sent.put(name, new ArrayList<>());
                return List.of();
            case "consumer":
                consumers.put(name,
                    new KafkaConsumer<>(settings(given), new StringDeserializer(), new StringDeserializer()));
                return List.of();
            default:
                if (producers.containsKey(name)) produce(call, name, given);
                else return consume(call, consumers.get(name), given);
                return List.of();
        }
    }

    private static Properties settings(String[] given) {
        Properties settings = new Properties();
        for (String pair : given) settings.put(pair.split("=", 2)[0], pair.split("=", 2)[1]);
        return settings;
    }

    private static void produce(String call, String name, String[] given) throws Exception {
        Producer<String, String> producer = producers.get(name);
        switch (call) {
            case "init": producer.initTransactions(); return;
            case "begin": producer.beginTransaction(); return;
            case "send": // a partition, then values
                TopicPartition to = partition(given[0]);
                for (int i = 1; i < given.length; i++)
                    sent.get(name).add(producer.send(
                        new ProducerRecord<>(to.topic(), to.partition(), null, given[i])));
                return;
            case "flush": // fails with the first record that was not stored
                producer.flush();
                List<Future<RecordMetadata>> waited = sent.put(name, new ArrayList<>());
                for (Future<RecordMetadata> each : waited) each.get();
                return;
            case "offsets": // what "member" answered, then partitions with offsets
                producer.sendOffsetsToTransaction(
                    offsets(Arrays.copyOfRange(given, 1, given.length)),
                    members.get(Integer.parseInt(given[0])));
                return;
            case "commit": producer.commitTransaction(); return;
            case "abort": producer.abortTransaction(); return;
            case "close": forget(name).close(); return;
            case "abandon": forget(name).close(Duration.ZERO); return; // tells the broker nothing
            default: throw new IllegalArgumentException(call);
        }
    }

    private static Producer<String, String> forget(String name) {
        sent.remove(name);
        return producers.remove(name);
    }

    private static List<String> consume(
        String call, Consumer<String, String> consumer, String[] given
    ) throws Exception {
        switch (call) {
            case "subscribe": consumer.subscribe(List.of(given)); return List.of();
            case "assign": // partitions, with the offset to begin at or without
                Map<TopicPartition, OffsetAndMetadata> starts = offsets(given);
                consumer.assign(starts.keySet());
                starts.forEach((at, offset) -> { if (offset.offset() > 0) consumer.seek(at, offset); });
                return List.of();
            case "poll": // milliseconds; four words for each record
                List<String> read = new ArrayList<>();
                for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(Long.parseLong(given[0]))))
                    read.addAll(List.of(each.topic(), "" + each.partition(), "" + each.offset(), each.value()));
                return read;
            case "member": // who it is in its group just now
                members.add(consumer.groupMetadata());
                return List.of("" + (members.size() - 1));
            case "identity": // the same in words: member, generation, instance
                ConsumerGroupMetadata who = consumer.groupMetadata();
                return List.of(who.memberId(), "" + who.generationId(), who.groupInstanceId().orElse(""));
            case "assignment":
                List<String> owned = new ArrayList<>();
                for (TopicPartition each : consumer.assignment()) owned.add(each.topic() + ":" + each.partition());
                return owned;
            case "seek": offsets(given).forEach(consumer::seek); return List.of();
            case "position": return List.of("" + consumer.position(partition(given[0])));
            case "end": return List.of("" + consumer.endOffsets(List.of(partition(given[0]))).get(partition(given[0])));
            case "lag":
                OptionalLong lag = consumer.currentLag(partition(given[0]));
                return List.of(lag.isPresent() ? "" + lag.getAsLong() : "");
            case "committed":
                OffsetAndMetadata found = consumer.committed(Set.of(partition(given[0]))).get(partition(given[0]));
                return List.of(found == null ? "" : "" + found.offset());
            case "close":
                consumer.close();
                consumers.values().remove(consumer);
                return List.of();
            default: throw new IllegalArgumentException(call);
        }
    }

    private static TopicPartition partition(String given) {
        String[] parts = given.split(":");
        return new TopicPartition(parts[0], Integer.parseInt(parts[1]));
    }

    private static Map<TopicPartition, OffsetAndMetadata> offsets(String[] given) {
        Map<TopicPartition, OffsetAndMetadata> offsets = new HashMap<>();
        for (String each : given) {
            String[] parts = each.split(":");
            offsets.put(partition(each), new OffsetAndMetadata(parts.length > 2 ? Long.parseLong(parts[2]) : 0));
        }
        return offsets;
    }
}
