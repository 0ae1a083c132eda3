import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Reads a topic from its beginning until a number of records has come, without a group: Kafka's own
 * ConsumerPerformance subscribes, which needs one. Arguments: bootstrap, topic, records, then
 * property=value. Prints one JSON object.
 */
public class AssignedConsumer {
    public static void main(String[] args) {
        String topic = args[1];
        long wanted = Long.parseLong(args[2]);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("enable.auto.commit", "false");
        settings.put("max.poll.records", "5000");
        settings.put("key.deserializer", ByteArrayDeserializer.class.getName());
        settings.put("value.deserializer", ByteArrayDeserializer.class.getName());
        for (int i = 3; i < args.length; i++) {
            String[] pair = args[i].split("=", 2);
            settings.put(pair[0], pair[1]);
        }
        try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(settings)) {
            List<TopicPartition> partitions = consumer.partitionsFor(topic).stream()
                .map(p -> new TopicPartition(topic, p.partition()))
                .collect(Collectors.toList());
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            long begun = System.nanoTime();
            long quietSince = begun;
            long records = 0;
            long bytes = 0;
            while (records < wanted) {
                ConsumerRecords<byte[], byte[]> polled = consumer.poll(Duration.ofMillis(500));
                for (ConsumerRecord<byte[], byte[]> record : polled) bytes += record.value().length;
                records += polled.count();
                long now = System.nanoTime();
                if (polled.count() > 0) quietSince = now;
                if (now - quietSince > 30_000_000_000L) {
                    System.err.println("nothing for 30 s after " + records + " records");
                    System.exit(1);
                }
            }
            double seconds = (System.nanoTime() - begun) / 1e9;
            System.out.printf("{\"records\": %d, \"bytes\": %d, \"seconds\": %.6f}%n", records, bytes, seconds);
        }
    }
}
