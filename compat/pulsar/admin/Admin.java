import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.admin.PulsarAdmin;
import org.apache.pulsar.client.admin.PulsarAdminBuilder;
import org.apache.pulsar.client.admin.PulsarAdminException;
import org.apache.pulsar.client.api.ClientBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.common.policies.data.SchemaMetadata;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;
import org.apache.pulsar.common.util.ObjectMapperFactory;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Pulsar's admin classes, driven from outside: a line of JSON per call, a line of JSON per answer ("ok", or
 * "error" with the exception's class, "message" and HTTP's "status"). "ask" calls any method of any part of
 * PulsarAdmin by its name: {"call": "ask", "admin": 1, "of": "topics", "method": "getStats", "args": ["t"]}.
 * Message ids are "ledger:entry:partition" or "earliest", "latest"; payloads are in base64. The other calls
 * are a client's, as far as the tests of REST need one.
 */
public class Admin {
    private static final ObjectMapper JSON = ObjectMapperFactory.create();
    private static final Map<Integer, Object> made = new HashMap<>();

    public static void main(String[] none) throws Exception {
        PrintStream answers = new PrintStream(System.out, false, StandardCharsets.UTF_8);
        BufferedReader calls =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = calls.readLine()) != null; ) {
            ObjectNode answer = JSON.createObjectNode();
            try {
                answer.set("ok", JSON.valueToTree(shown(call(JSON.readTree(line)))));
            } catch (Throwable raised) {
                Throwable cause = raised;
                while ((cause instanceof ExecutionException || cause instanceof CompletionException
                    || cause instanceof InvocationTargetException) && cause.getCause() != null)
                    cause = cause.getCause();
                answer.put("error", cause.getClass().getSimpleName());
                answer.put("message", String.valueOf(cause.getMessage()));
                if (cause instanceof PulsarAdminException)
                    answer.put("status", ((PulsarAdminException) cause).getStatusCode());
            }
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
        }
        System.exit(0);
    }

    private static int keep(Object object) {
        made.put(made.size() + 1, object);
        return made.size();
    }

    @SuppressWarnings("unchecked")
    private static <T> T named(JsonNode call, String kind) {
        Object found = made.get(call.path(kind).asInt());
        if (found == null) throw new IllegalArgumentException("no such " + kind + ": " + call);
        return (T) found;
    }

    private static Object call(JsonNode call) throws Exception {
        switch (call.get("call").asText()) {
            case "admin": return keep(admin(call));
            case "ask": return ask(call);
            case "client": return keep(client(call));
            case "producer":
                return keep(Admin.<PulsarClient>named(call, "client").newProducer()
                    .topic(call.get("topic").asText()).enableBatching(false)
                    .sendTimeout(call.path("timeout_s").asInt(30), TimeUnit.SECONDS).create());
            case "consumer":
                return keep(Admin.<PulsarClient>named(call, "client").newConsumer()
                    .topic(call.get("topic").asText()).subscriptionName(call.get("subscription").asText())
                    .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest).subscribe());
            case "reader":
                return keep(Admin.<PulsarClient>named(call, "client").newReader()
                    .topic(call.get("topic").asText()).startMessageId(MessageId.earliest).create());
            case "begin": return begin(call);
            case "send":
                byte[] value = call.get("value").asText().getBytes(StandardCharsets.UTF_8);
                Producer<byte[]> producer = named(call, "producer");
                return (call.has("txn") ? producer.newMessage(Admin.<Transaction>named(call, "txn"))
                    : producer.newMessage()).value(value).send();
            case "commit": return Admin.<Transaction>named(call, "txn").commit().get(60, TimeUnit.SECONDS);
            case "receive": return receive(call);
            case "has_reached_end":
                Object reader = named(call, "of");
                return reader instanceof Reader ? ((Reader<?>) reader).hasReachedEndOfTopic()
                    : ((Consumer<?>) reader).hasReachedEndOfTopic();
            case "partitions":
                return Admin.<PulsarClient>named(call, "client")
                    .getPartitionsForTopic(call.get("topic").asText()).get();
            case "close":
                ((AutoCloseable) named(call, "what")).close();
                return null;
            default: throw new IllegalArgumentException("no such call: " + call);
        }
    }

    private static PulsarAdmin admin(JsonNode call) throws Exception {
        PulsarAdminBuilder builder = PulsarAdmin.builder().serviceHttpUrl(call.get("url").asText());
        if (call.has("trust")) builder.tlsTrustCertsFilePath(call.get("trust").asText());
        // As `pulsar-admin --auth-plugin … --auth-params …`.
        if (call.has("plugin")) {
            builder.authentication(call.get("plugin").asText(), call.get("params").asText());
        }
        return builder.build();
    }

    private static PulsarClient client(JsonNode call) throws Exception {
        ClientBuilder builder = PulsarClient.builder().serviceUrl(call.get("url").asText());
        if (call.has("trust")) builder.tlsTrustCertsFilePath(call.get("trust").asText());
        return builder.enableTransaction(call.path("transactions").asBoolean()).build();
    }

    /** A transaction: its number here, and the two of its id. */
    private static Object begin(JsonNode call) throws Exception {
        Transaction opened = Admin.<PulsarClient>named(call, "client").newTransaction()
            .withTransactionTimeout(call.path("timeout_s").asInt(60), TimeUnit.SECONDS)
            .build().get(60, TimeUnit.SECONDS);
        TxnID id = opened.getTxnID();
        return Map.of("txn", keep(opened), "most", id.getMostSigBits(), "least", id.getLeastSigBits());
    }

    private static Object receive(JsonNode call) throws Exception {
        Object from = named(call, "of");
        int within = call.path("within_ms").asInt(30_000);
        if (from instanceof Reader) return ((Reader<?>) from).readNext(within, TimeUnit.MILLISECONDS);
        Consumer<?> consumer = (Consumer<?>) from;
        Message<?> message = consumer.receive(within, TimeUnit.MILLISECONDS);
        if (message != null && call.has("txn"))
            consumer.acknowledgeAsync(message.getMessageId(), Admin.<Transaction>named(call, "txn"))
                .get(60, TimeUnit.SECONDS);
        else if (message != null) consumer.acknowledge(message);
        return message;
    }

    // --- any method of PulsarAdmin ---

    private static Object ask(JsonNode call) throws Exception {
        PulsarAdmin admin = named(call, "admin");
        Object part = PulsarAdmin.class.getMethod(call.get("of").asText()).invoke(admin);
        String name = call.get("method").asText();
        JsonNode given = call.path("args");
        for (Class<?> each : part.getClass().getInterfaces()) {
            for (Method method : each.getMethods()) {
                if (!method.getName().equals(name) || !takes(method, given)) continue;
                Object[] arguments = new Object[given.size()];
                for (int i = 0; i < arguments.length; i++)
                    arguments[i] = argument(given.get(i), method.getGenericParameterTypes()[i]);
                Object answer = method.invoke(part, arguments);
                return answer instanceof CompletableFuture
                    ? ((CompletableFuture<?>) answer).get(60, TimeUnit.SECONDS) : answer;
            }
        }
        throw new NoSuchMethodException(call.toString());
    }

    private static boolean takes(Method method, JsonNode given) {
        Class<?>[] types = method.getParameterTypes();
        if (types.length != given.size()) return false;
        for (int i = 0; i < types.length; i++) {
            JsonNode each = given.get(i);
            Class<?> type = types[i];
            boolean fits;
            if (each.isBoolean()) fits = type == boolean.class || type == Boolean.class;
            else if (each.isNumber())
                fits = type == int.class || type == long.class || type == Integer.class || type == Long.class;
            else if (each.isTextual())
                fits = type == String.class || type.isEnum() || type == MessageId.class;
            else if (each.isNull()) fits = !type.isPrimitive();
            else if (each.isArray()) fits = Collection.class.isAssignableFrom(type);
            else fits = !type.isPrimitive() && type != String.class && !type.isEnum()
                && type != MessageId.class;
            if (!fits) return false;
        }
        return true;
    }

    private static Object argument(JsonNode given, Type type) {
        if (given.isNull()) return null;
        if (type == MessageId.class) return id(given.asText());
        if (type == TxnID.class) return new TxnID(given.get("most").asLong(), given.get("least").asLong());
        if (type == SchemaInfo.class)
            return SchemaInfo.builder().name(given.path("name").asText())
                .type(SchemaType.valueOf(given.get("type").asText()))
                .schema(given.path("schema").asText().getBytes(StandardCharsets.UTF_8))
                .properties(Map.of()).build();
        return JSON.convertValue(given, JSON.constructType(type));
    }

    private static MessageId id(String text) {
        if (text.equals("earliest")) return MessageId.earliest;
        if (text.equals("latest")) return MessageId.latest;
        String[] parts = text.split(":");
        int partition = parts.length > 2 ? Integer.parseInt(parts[2]) : -1;
        return new MessageIdImpl(Long.parseLong(parts[0]), Long.parseLong(parts[1]), partition);
    }

    // --- what is answered ---

    private static Object shown(Object answer) {
        if (answer instanceof Message) return message((Message<?>) answer);
        if (answer instanceof MessageId) return shownId((MessageId) answer);
        if (answer instanceof byte[]) return Base64.getEncoder().encodeToString((byte[]) answer);
        if (answer instanceof Optional) return ((Optional<?>) answer).map(Admin::shown).orElse(null);
        if (answer instanceof SchemaInfo) return schema((SchemaInfo) answer);
        if (answer instanceof Map) {
            Map<String, Object> all = new LinkedHashMap<>();
            ((Map<?, ?>) answer).forEach((key, each) -> all.put(String.valueOf(key), shown(each)));
            return all;
        }
        if (answer instanceof Collection) {
            List<Object> all = new ArrayList<>();
            for (Object each : (Collection<?>) answer) all.add(shown(each));
            return all;
        }
        return answer;
    }

    private static Map<String, Object> schema(SchemaInfo info) {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("name", info.getName());
        all.put("type", info.getType().name());
        all.put("schema", new String(info.getSchema(), StandardCharsets.UTF_8));
        all.put("properties", info.getProperties());
        return all;
    }

    private static String shownId(MessageId id) {
        MessageIdAdv parts = (MessageIdAdv) id;
        String shown = parts.getLedgerId() + ":" + parts.getEntryId() + ":" + parts.getPartitionIndex();
        return parts.getBatchIndex() < 0 ? shown : shown + ":" + parts.getBatchIndex();
    }

    private static Map<String, Object> message(Message<?> message) {
        Map<String, Object> all = new LinkedHashMap<>();
        all.put("id", shownId(message.getMessageId()));
        byte[] payload = message.getData(); // once: of a batch's message it is gone then
        all.put("data", payload == null ? null : Base64.getEncoder().encodeToString(payload));
        all.put("key", message.getKey());
        all.put("properties", message.getProperties());
        all.put("publish_time", message.getPublishTime());
        all.put("event_time", message.getEventTime());
        all.put("producer", message.getProducerName());
        all.put("sequence_id", message.getSequenceId());
        return all;
    }
}
