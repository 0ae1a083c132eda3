import static java.util.concurrent.TimeUnit.MILLISECONDS;
import static java.util.concurrent.TimeUnit.SECONDS;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeoutException;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.Authentication;
import org.apache.pulsar.client.api.AuthenticationFactory;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.CompressionType;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.ConsumerEventListener;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.MessageRoutingMode;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerAccessMode;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.RegexSubscriptionMode;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionMode;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericRecordBuilder;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.impl.ZeroQueueConsumerImpl;
import org.apache.pulsar.client.impl.auth.AuthenticationBasic;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Pulsar's Java client, driven from outside: a line of JSON per call, a line of JSON per answer
 * ("ok", or "error" with the exception's class and "message"). What a call makes is kept under a
 * number, by which later calls name it. A call with "later" is answered at once by a number; "join"
 * waits for it. ../README.md has the calls; Go's driver has the same.
 */
public class Driver {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Map<Integer, Object> made = new ConcurrentHashMap<>();
    private static final Map<Integer, Map<Integer, Message<Object>>> received =
        new ConcurrentHashMap<>();
    private static final Map<Integer, List<String>> events = new ConcurrentHashMap<>();
    private static final Set<SchemaType> RECORDS = Set.of(SchemaType.JSON, SchemaType.AVRO);
    private static final ExecutorService waiting = Executors.newCachedThreadPool();
    private static int last = 0;

    public static void main(String[] none) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader calls =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = calls.readLine()) != null; ) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                JsonNode call = JSON.readTree(line);
                answer.set("ok", JSON.valueToTree(is(call, "later") ? later(call) : call(call)));
            } catch (Throwable raised) {
                Throwable shown = raised;
                while ((shown instanceof ExecutionException || shown instanceof CompletionException)
                    && shown.getCause() != null) shown = shown.getCause();
                answer.put("error", shown.getClass().getSimpleName());
                answer.put("message", String.valueOf(shown.getMessage()));
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static int keep(Object object) {
        made.put(++last, object);
        return last;
    }

    private static int later(JsonNode call) {
        return keep(CompletableFuture.supplyAsync(() -> {
            try {
                return call(call);
            } catch (Exception raised) {
                throw new CompletionException(raised);
            }
        }, waiting));
    }

    @SuppressWarnings("unchecked")
    private static <T> T named(JsonNode call, String kind) {
        Object found = made.get(call.path(kind).asInt());
        if (found == null) throw new IllegalArgumentException("no such " + kind + ": " + call);
        return (T) found;
    }

    private static Object call(JsonNode call) throws Exception {
        switch (text(call, "call")) {
            case "client": return keep(client(call));
            case "producer": return producer(call);
            case "consumer": return consumer(call);
            case "reader": return keep(reader(call));
            case "view": return keep(clientOf(call).newTableView()
                .topic(text(call, "topic")).create());
            case "entries": return entries(named(call, "view"));
            case "partitions":
                return clientOf(call).getPartitionsForTopic(text(call, "topic")).get();
            case "send": return send(call);
            case "sequence":
                return Driver.<Producer<Object>>named(call, "producer").getLastSequenceId();
            case "receive": return receive(call);
            case "read": return read(call);
            case "available":
                return Driver.<Reader<Object>>named(call, "reader").hasMessageAvailable();
            case "acknowledge": acknowledge(call); return null;
            case "give_back":
                for (JsonNode each : call.get("messages"))
                    consumer(call, c -> c.negativeAcknowledge(message(call, each)));
                return null;
            case "give_all_back":
                consumer(call, Consumer::redeliverUnacknowledgedMessages); return null;
            case "reconsume_later":
                consumerOf(call).reconsumeLater(
                    message(call, call.get("message")), call.get("delay_ms").asLong(),
                        MILLISECONDS);
                return null;
            case "seek": seek(call); return null;
            case "unsubscribe":
                consumerOf(call).unsubscribe(is(call, "force"));
                return null;
            case "last_ids":
                List<Object> ids = new ArrayList<>();
                consumerOf(call).getLastMessageIds().forEach(each -> ids.add(id(each)));
                return ids;
            case "at_end": return ((Consumer<?>) named(call, "consumer")).hasReachedEndOfTopic();
            case "begin": return begin(call);
            case "commit": Driver.<Transaction>named(call, "transaction").commit().get(); return null;
            case "abort": Driver.<Transaction>named(call, "transaction").abort().get(); return null;
            case "state":
                return Driver.<Transaction>named(call, "transaction").getState().name();
            case "events": return events.get(call.get("consumer").asInt());
            case "join":
                try {
                    return Driver.<CompletableFuture<?>>named(call, "job")
                        .get(call.get("within_ms").asLong(), MILLISECONDS);
                } catch (TimeoutException raised) {
                    throw new TimeoutException("not done yet");
                }
            case "close": close(call.get("object").asInt()); return null;
            default: throw new IllegalArgumentException(call.toString());
        }
    }

    private interface Act<T> { void on(T object) throws Exception; }

    private static void consumer(JsonNode call, Act<Consumer<Object>> act) throws Exception {
        act.on(named(call, "consumer"));
    }

    private static PulsarClient clientOf(JsonNode call) {
        return named(call, "client");
    }

    private static Consumer<Object> consumerOf(JsonNode call) {
        return named(call, "consumer");
    }

    private static String text(JsonNode of, String name) {
        return of.get(name).asText();
    }

    private static boolean is(JsonNode of, String name) {
        return of.path(name).asBoolean();
    }

    private static void close(int number) throws Exception {
        received.remove(number);
        Object object = made.remove(number);
        // A client takes two seconds to end its threads, long after it has closed what it had.
        if (object instanceof PulsarClient) ((PulsarClient) object).closeAsync();
        else if (object instanceof AutoCloseable) ((AutoCloseable) object).close();
    }

    private static PulsarClient client(JsonNode call) throws Exception {
        ClientBuilder builder = PulsarClient.builder();
        if (call.has("trust")) builder.tlsTrustCertsFilePath(text(call, "trust"));
        if (call.has("login")) builder.authentication(login(call.get("login")));
        return builder
            .serviceUrl(text(call, "url"))
            .operationTimeout(call.path("operation_timeout_ms").asInt(30_000), MILLISECONDS)
            .ioThreads(1).listenerThreads(1)
            .enableTransaction(is(call, "has_transactions"))
            .build();
    }

    /** How it logs in. A token's file is read each time that the token is asked for. */
    private static Authentication login(JsonNode how) throws Exception {
        switch (text(how, "method")) {
            case "token":
                Path file = Path.of(text(how, "token_file"));
                return AuthenticationFactory.token(() -> {
                    try {
                        return Files.readString(file).trim();
                    } catch (IOException missing) {
                        throw new UncheckedIOException(missing);
                    }
                });
            case "basic":
                AuthenticationBasic basic = new AuthenticationBasic();
                basic.configure(Map.of(
                    "userId", text(how, "user"), "password", text(how, "password")));
                return basic;
            default:
                return AuthenticationFactory.TLS(text(how, "certificate"), text(how, "key"));
        }
    }

    // --- transactions ---

    private static Object begin(JsonNode call) throws Exception {
        Transaction transaction = clientOf(call).newTransaction()
            .withTransactionTimeout(call.path("ttl_ms").asLong(60_000), MILLISECONDS)
            .build().get();
        return Map.of("number", keep(transaction),
            "most", transaction.getTxnID().getMostSigBits(),
            "least", transaction.getTxnID().getLeastSigBits());
    }

    /** The one that a call is in, or null. */
    private static Transaction transaction(JsonNode call) {
        return call.has("transaction") ? named(call, "transaction") : null;
    }

    // --- producers ---

    private static Object producer(JsonNode call) throws Exception {
        ProducerBuilder<Object> builder = clientOf(call).newProducer(schema(call.path("schema")))
            .loadConf(Map.of("compressMinMsgBodySize", 1)) // else small messages stay as they are
            .topic(text(call, "topic"))
            .enableBatching(is(call, "is_batched"))
            .batchingMaxPublishDelay(call.path("batch_delay_ms").asLong(20), MILLISECONDS)
            .batchingMaxMessages(call.path("batch_messages").asInt(1000))
            .blockIfQueueFull(true)
            .enableChunking(is(call, "is_chunking"))
            .sendTimeout(call.path("send_timeout_ms").asInt(30_000), MILLISECONDS);
        if (is(call, "is_by_key")) builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        if (call.has("compression")) builder.compressionType(CompressionType.valueOf(text(call,
            "compression").toUpperCase()));
        if (call.has("producer_name")) builder.producerName(text(call, "producer_name"));
        if (call.has("initial_sequence_id"))
            builder.initialSequenceId(call.get("initial_sequence_id").asLong());
        if (call.has("access"))
            builder.accessMode(ProducerAccessMode.valueOf(text(call, "access")));
        if (is(call, "is_round_robin"))
            builder.messageRoutingMode(MessageRoutingMode.RoundRobinPartition);
        if (call.has("public_key"))
            builder.addEncryptionKey("k")
                .defaultCryptoKeyReader(Map.of("k", "file://" + text(call, "public_key")));
        Producer<Object> producer = builder.create();
        return Map.of("number", keep(producer), "name", producer.getProducerName());
    }

    /** Hands all of them over, then waits for the receipt of each. */
    private static Object send(JsonNode call) throws Exception {
        Producer<Object> producer = named(call, "producer");
        Transaction transaction = transaction(call);
        List<CompletableFuture<MessageId>> sent = new ArrayList<>();
        for (JsonNode each : call.get("messages")) {
            TypedMessageBuilder<Object> message = transaction == null
                ? producer.newMessage() : producer.newMessage(transaction);
            if (each.has("schema")) message = producer.newMessage(schema(each.get("schema")));
            message.value(value(each));
            if (each.has("key")) message.key(text(each, "key"));
            if (each.has("key_bytes")) message.keyBytes(bytes(each.get("key_bytes")));
            if (each.has("ordering_key")) message.orderingKey(bytes(each.get("ordering_key")));
            for (Map.Entry<String, JsonNode> property : each.path("properties").properties())
                message.property(property.getKey(), property.getValue().asText());
            if (each.has("event_time")) message.eventTime(each.get("event_time").asLong());
            if (each.has("sequence_id")) message.sequenceId(each.get("sequence_id").asLong());
            if (each.has("deliver_at")) message.deliverAt(each.get("deliver_at").asLong());
            if (each.has("deliver_after_ms"))
                message.deliverAfter(each.get("deliver_after_ms").asLong(), MILLISECONDS);
            sent.add(message.sendAsync());
        }
        producer.flush();
        List<Object> ids = new ArrayList<>();
        for (CompletableFuture<MessageId> each : sent) ids.add(id(each.get()));
        return ids;
    }

    // --- consumers and readers ---

    private static Object consumer(JsonNode call) throws Exception {
        ConsumerBuilder<Object> builder = clientOf(call).newConsumer(schema(call.path("schema")))
            .subscriptionName(text(call, "subscription"))
            .subscriptionType(SubscriptionType.valueOf(call.path("type").asText("Exclusive")))
            .isAckReceiptEnabled(is(call, "is_receipted"))
            .enableBatchIndexAcknowledgment(is(call, "is_by_index"))
            .negativeAckRedeliveryDelay(call.path("give_back_ms").asLong(60_000), MILLISECONDS)
            .priorityLevel(call.path("priority").asInt())
            .receiverQueueSize(call.path("queue").asInt(1000));
        if (call.has("pattern")) {
            builder.topicsPattern(Pattern.compile(text(call, "pattern")))
                .subscriptionTopicsMode(RegexSubscriptionMode.PersistentOnly)
                .patternAutoDiscoveryPeriod(60, SECONDS);
        }
        for (JsonNode each : call.path("topics")) builder.topic(each.asText());
        if (is(call, "is_earliest"))
            builder.subscriptionInitialPosition(SubscriptionInitialPosition.Earliest);
        if (is(call, "is_inclusive")) builder.startMessageIdInclusive();
        if (is(call, "is_transient")) builder.subscriptionMode(SubscriptionMode.NonDurable);
        if (call.has("consumer_name")) builder.consumerName(text(call, "consumer_name"));
        if (call.has("ack_timeout_ms"))
            builder.ackTimeout(call.get("ack_timeout_ms").asLong(), MILLISECONDS)
                .ackTimeoutTickTime(100, MILLISECONDS);
        if (is(call, "has_retries")) builder.enableRetry(true);
        JsonNode dead = call.path("dead_letter");
        if (!dead.isMissingNode()) {
            DeadLetterPolicy.DeadLetterPolicyBuilder policy =
                DeadLetterPolicy.builder().maxRedeliverCount(dead.get("after").asInt());
            if (dead.has("topic")) policy.deadLetterTopic(text(dead, "topic"));
            if (dead.has("retry_topic")) policy.retryLetterTopic(text(dead, "retry_topic"));
            if (dead.has("subscription"))
                policy.initialSubscriptionName(text(dead, "subscription"));
            builder.deadLetterPolicy(policy.build());
        }
        JsonNode sticky = call.path("ranges");
        if (!sticky.isMissingNode()) {
            List<Range> ranges = new ArrayList<>();
            for (JsonNode each : sticky)
                ranges.add(Range.of(each.get(0).asInt(), each.get(1).asInt()));
            builder.keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(ranges));
        } else if (is(call, "is_out_of_order")) {
            builder.keySharedPolicy(KeySharedPolicy.autoSplitHashRange()
                .setAllowOutOfOrderDelivery(true));
        }
        if (call.has("private_key"))
            builder.defaultCryptoKeyReader(Map.of("k", "file://" + text(call, "private_key")));
        List<String> told = java.util.Collections.synchronizedList(new ArrayList<>());
        if (call.path("type").asText().equals("Failover")) {
            builder.consumerEventListener(new ConsumerEventListener() {
                @Override
                public void becameActive(Consumer<?> consumer, int partition) {
                    told.add("active " + partition);
                }

                @Override
                public void becameInactive(Consumer<?> consumer, int partition) {
                    told.add("inactive " + partition);
                }
            });
        }
        Consumer<Object> consumer = builder.subscribe();
        int number = keep(consumer);
        received.put(number, new HashMap<>());
        events.put(number, told);
        return number;
    }

    private static Reader<Object> reader(JsonNode call) throws Exception {
        ReaderBuilder<Object> builder = clientOf(call).newReader(schema(call.path("schema")))
            .topic(text(call, "topic"));
        if (call.has("before_ms"))
            builder.startMessageFromRollbackDuration(call.get("before_ms").asLong(), MILLISECONDS);
        else builder.startMessageId(id(text(call, "start")));
        if (is(call, "is_inclusive")) builder.startMessageIdInclusive();
        return builder.create();
    }

    private static Object receive(JsonNode call) throws Exception {
        Consumer<Object> consumer = named(call, "consumer");
        Map<Integer, Message<Object>> kept = received.get(call.get("consumer").asInt());
        List<CompletableFuture<Void>> acknowledged = new ArrayList<>();
        List<Object> found = new ArrayList<>();
        for (long wanted = call.get("count").asLong(); found.size() < wanted; ) {
            Message<Object> message = next(consumer, call.get("within_ms").asInt());
            if (message == null) break;
            if (is(call, "acknowledge"))
                acknowledged.add(
                    consumer.acknowledgeAsync(message.getMessageId(), transaction(call)));
            ObjectNode shown = show(message);
            if (!is(call, "acknowledge")) {
                kept.put(++last, message);
                shown.put("number", last);
            }
            found.add(shown);
        }
        for (CompletableFuture<Void> each : acknowledged) each.get();
        return found;
    }

    private static Message<Object> next(Consumer<Object> consumer, int withinMs) throws Exception {
        if (!(consumer instanceof ZeroQueueConsumerImpl))
            return consumer.receive(withinMs, MILLISECONDS);
        return consumer.receive(); // without a queue it knows no time
    }

    private static Object read(JsonNode call) throws Exception {
        Reader<Object> reader = named(call, "reader");
        List<Object> found = new ArrayList<>();
        for (long wanted = call.get("count").asLong(); found.size() < wanted; ) {
            Message<Object> message = reader.readNext(call.get("within_ms").asInt(), MILLISECONDS);
            if (message == null) break;
            found.add(show(message));
        }
        return found;
    }

    private static Message<Object> message(JsonNode call, JsonNode number) {
        return received.get(call.get("consumer").asInt()).get(number.asInt());
    }

    private static void acknowledge(JsonNode call) throws Exception {
        Consumer<Object> consumer = named(call, "consumer");
        List<CompletableFuture<Void>> acknowledged = new ArrayList<>();
        for (JsonNode each : call.get("messages")) {
            Message<Object> message = message(call, each);
            acknowledged.add(is(call, "is_cumulative")
                ? consumer.acknowledgeCumulativeAsync(message.getMessageId(), transaction(call))
                : consumer.acknowledgeAsync(message.getMessageId(), transaction(call)));
        }
        for (CompletableFuture<Void> each : acknowledged) each.get();
    }

    private static void seek(JsonNode call) throws Exception {
        if (call.has("reader")) {
            Reader<Object> reader = named(call, "reader");
            if (call.has("time")) reader.seek(call.get("time").asLong());
            else reader.seek(id(text(call, "id")));
        } else {
            Consumer<Object> consumer = named(call, "consumer");
            if (call.has("time")) consumer.seek(call.get("time").asLong());
            else consumer.seek(id(text(call, "id")));
        }
    }

    private static Object entries(TableView<byte[]> view) {
        Map<String, String> found = new LinkedHashMap<>();
        view.forEach((key, value) -> found.put(key, base64(value)));
        return found;
    }

    // --- values ---

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static byte[] bytes(JsonNode base64) {
        return Base64.getDecoder().decode(base64.asText());
    }

    private static MessageId id(String given) throws Exception {
        if (given.equals("earliest")) return MessageId.earliest;
        if (given.equals("latest")) return MessageId.latest;
        return MessageId.fromByteArray(Base64.getDecoder().decode(given));
    }

    private static ObjectNode id(MessageId id) {
        MessageIdAdv parts = (MessageIdAdv) id;
        return JSON.createObjectNode()
            .put("ledger", parts.getLedgerId()).put("entry", parts.getEntryId())
            .put("partition", parts.getPartitionIndex()).put("batch_index", parts.getBatchIndex())
            .put("bytes", base64(id.toByteArray()));
    }

    private static ObjectNode show(Message<Object> message) throws Exception {
        ObjectNode shown = JSON.createObjectNode();
        shown.put("topic", message.getTopicName());
        shown.set("id", id(message.getMessageId()));
        Object value = message.getValue();
        shown.put("value", value == null ? null : base64(message.getData()));
        if (!(value instanceof byte[])) shown.set("decoded", shown(value));
        shown.put("key", message.hasKey() ? base64(message.getKeyBytes()) : null);
        shown.put("ordering_key", message.hasOrderingKey()
            ? base64(message.getOrderingKey()) : null);
        shown.set("properties", JSON.valueToTree(message.getProperties()));
        shown.put("publish_time", message.getPublishTime());
        shown.put("event_time", message.getEventTime());
        shown.put("producer_name", message.getProducerName());
        shown.put("sequence_id", message.getSequenceId());
        shown.put("redelivery_count", message.getRedeliveryCount());
        shown.put("schema_version", message.getSchemaVersion() == null
            ? null : base64(message.getSchemaVersion()));
        message.getIndex().ifPresent(index -> shown.put("index", index));
        return shown;
    }

    private static JsonNode shown(Object value) throws Exception {
        if (value instanceof GenericObject
            && !RECORDS.contains(((GenericObject) value).getSchemaType()))
            return shown(((GenericObject) value).getNativeObject());
        if (value instanceof KeyValue) {
            KeyValue<?, ?> pair = (KeyValue<?, ?>) value;
            return JSON.createArrayNode().add(shown(pair.getKey())).add(shown(pair.getValue()));
        }
        if (value instanceof GenericRecord) {
            Object whole = ((GenericRecord) value).getNativeObject();
            // In JSON a list comes as a record without fields.
            if (whole.getClass().getSimpleName().equals("ArrayNode"))
                return JSON.readTree(whole.toString());
            ObjectNode fields = JSON.createObjectNode();
            for (Field each : ((GenericRecord) value).getFields())
                fields.set(each.getName(), shown(((GenericRecord) value).getField(each)));
            return fields;
        }
        if (value != null
            && value.getClass().getName().contains("JsonNode") || value instanceof Iterable)
            return JSON.readTree(value.toString()); // the client's own class of them; Avro's arrays
        if (value instanceof CharSequence) return JSON.valueToTree(value.toString());
        if (value instanceof java.util.Date)
            return JSON.valueToTree(((java.util.Date) value).getTime());
        if (value instanceof java.time.temporal.Temporal) return JSON.valueToTree(value.toString());
        return JSON.valueToTree(value);
    }

    /** "value": bytes in Base64; "text", "whole", ...: what the schema wants; nothing: null. */
    private static Object value(JsonNode message) throws Exception {
        if (message.has("value"))
            return message.get("value").isNull() ? null : bytes(message.get("value"));
        JsonNode typed = message.path("typed");
        return typed.isMissingNode() ? null : value(text(typed, "type"), typed);
    }

    private static Object value(String type, JsonNode typed) throws Exception {
        JsonNode value = typed.get("value");
        switch (type) {
            case "STRING": return value.asText();
            case "BOOLEAN": return value.asBoolean();
            case "INT8": return (byte) value.asInt();
            case "INT16": return (short) value.asInt();
            case "INT32": return value.asInt();
            case "INT64": return value.asLong();
            case "FLOAT": return (float) value.asDouble();
            case "DOUBLE": return value.asDouble();
            case "DATE": return new java.util.Date(value.asLong());
            case "TIMESTAMP": return new java.sql.Timestamp(value.asLong());
            case "INSTANT": return java.time.Instant.parse(value.asText());
            case "LOCAL_DATE": return java.time.LocalDate.parse(value.asText());
            case "LOCAL_TIME": return java.time.LocalTime.parse(value.asText());
            case "LOCAL_DATE_TIME": return java.time.LocalDateTime.parse(value.asText());
            case "FLIGHT": return JSON.treeToValue(value, Flight.class);
            case "KEY_VALUE":
                return new KeyValue<>(
                    value(text(typed, "key_type"), part(value.get(0))),
                    value(text(typed, "value_type"), part(value.get(1))));
            case "RECORD": {
                GenericSchema<GenericRecord> schema = Schema.generic(info(typed));
                GenericRecordBuilder builder = schema.newRecordBuilder();
                for (Map.Entry<String, JsonNode> each : value.properties())
                    builder.set(each.getKey(), JSON.treeToValue(each.getValue(), Object.class));
                return builder.build();
            }
            default: throw new IllegalArgumentException(type);
        }
    }

    private static ObjectNode part(JsonNode value) {
        return JSON.createObjectNode().set("value", value);
    }

    private static SchemaInfo info(JsonNode schema) {
        return SchemaInfo.builder().name("").type(SchemaType.valueOf(text(schema, "kind")))
            .schema(text(schema, "definition").getBytes(StandardCharsets.UTF_8))
            .properties(Map.of()).build();
    }

    /** {"type": "INT32"}; {"type": "RECORD", "kind": "JSON", "definition": ...}. */
    @SuppressWarnings({"unchecked", "rawtypes"})
    private static Schema<Object> schema(JsonNode given) {
        return (Schema) switch (given.path("type").asText("BYTES")) {
            case "BYTES" -> Schema.BYTES;
            case "STRING" -> Schema.STRING;
            case "BOOLEAN" -> Schema.BOOL;
            case "INT8" -> Schema.INT8;
            case "INT16" -> Schema.INT16;
            case "INT32" -> Schema.INT32;
            case "INT64" -> Schema.INT64;
            case "FLOAT" -> Schema.FLOAT;
            case "DOUBLE" -> Schema.DOUBLE;
            case "DATE" -> Schema.DATE;
            case "TIMESTAMP" -> Schema.TIMESTAMP;
            case "INSTANT" -> Schema.INSTANT;
            case "LOCAL_DATE" -> Schema.LOCAL_DATE;
            case "LOCAL_TIME" -> Schema.LOCAL_TIME;
            case "LOCAL_DATE_TIME" -> Schema.LOCAL_DATE_TIME;
            case "FLIGHT" -> text(given, "kind").equals("JSON")
                ? Schema.JSON(Flight.class) : Schema.AVRO(Flight.class);
            case "RECORD" -> Schema.generic(info(given));
            case "KEY_VALUE" -> Schema.KeyValue(
                schema(JSON.createObjectNode().put("type", text(given, "key_type"))),
                schema(JSON.createObjectNode().put("type", text(given, "value_type"))),
                KeyValueEncodingType.valueOf(given.path("encoding").asText("INLINE")));
            case "AUTO_CONSUME" -> Schema.AUTO_CONSUME();
            case "AUTO_PRODUCE" -> Schema.AUTO_PRODUCE_BYTES();
            default -> throw new IllegalArgumentException(given.toString());
        };
    }

    /** What Java's users write: a class, of which the client makes the schema. */
    public static class Flight {
        public String tail;
        public List<Integer> delays;
        public long distance;
    }
}
