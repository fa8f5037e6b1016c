/*
 * The matrix's records: what is sent by number, and how a record that was read is printed. The same in every language.
 */

import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Future;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.header.Header;

final class Records {
    static final long START_MS = 1_700_000_000_000L;
    static final Duration SHORT = Duration.ofMillis(200);
    static final long PATIENCE_MS = 40_000;

    private Records() {}

    static byte[] value(int number) {
        if (number % 10 == 6) {
            return null;
        }
        byte[] start = ("v" + number + "-").getBytes(StandardCharsets.UTF_8);
        byte[] value = Arrays.copyOf(start, start.length + 200 + number * 37 % 400 + 2);
        Arrays.fill(value, start.length, value.length - 2, (byte) 'x');
        value[value.length - 2] = (byte) 0xff;
        return value;
    }

    static ProducerRecord<byte[], byte[]> record(TopicPartition place, int number) {
        byte[] key = number % 5 == 4 ? null : ("k" + number % 3).getBytes(StandardCharsets.UTF_8);
        var record = new ProducerRecord<>(
            place.topic(), place.partition(), START_MS + number * 1000L, key, value(number));
        if (number % 4 == 1) {
            record.headers().add("number", String.valueOf(number).getBytes(StandardCharsets.UTF_8));
            record.headers().add("empty", new byte[0]);
        }
        if (number % 4 == 2) {
            record.headers().add("null", null);
        }
        return record;
    }

    /** Sends records [from, until) and waits for all; their offsets. */
    static List<Object> send(Producer<byte[], byte[]> producer, TopicPartition place, int from, int until)
        throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        for (int number = from; number < until; number++) {
            sent.add(producer.send(record(place, number)));
        }
        producer.flush();
        List<Object> offsets = new ArrayList<>();
        for (Future<RecordMetadata> one : sent) {
            offsets.add(one.get().offset());
        }
        return offsets;
    }

    /** The next `count` records; more than that are seen too. */
    static List<Object> take(Consumer<byte[], byte[]> consumer, int count) {
        List<Object> seen = new ArrayList<>();
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (seen.size() < count) {
            for (ConsumerRecord<byte[], byte[]> one : consumer.poll(SHORT)) {
                seen.add(shown(one));
            }
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("read " + seen.size() + " of " + count + " records");
            }
        }
        return seen;
    }

    static List<Object> shown(ConsumerRecord<byte[], byte[]> one) {
        List<Object> headers = new ArrayList<>();
        for (Header header : one.headers()) {
            headers.add(Arrays.asList(header.key(), hex(header.value(), 1 << 10)));
        }
        return Arrays.asList(one.partition(), one.offset(), hex(one.key(), 1 << 10), digest(one.value()), headers,
            one.timestamp(), one.timestampType().toString());
    }

    static String digest(byte[] value) {
        try {
            return value == null ? null
                : value.length + ":" + hex(MessageDigest.getInstance("SHA-256").digest(value), 6);
        } catch (java.security.NoSuchAlgorithmException error) {
            throw new AssertionError(error);
        }
    }

    static String hex(byte[] bytes, int most) {
        if (bytes == null) {
            return null;
        }
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < Math.min(bytes.length, most); at++) {
            text.append(String.format("%02x", bytes[at]));
        }
        return text.toString();
    }

    static Map<String, Object> map(Object... words) {
        Map<String, Object> map = new TreeMap<>();
        for (int at = 0; at < words.length; at += 2) {
            map.put((String) words[at], words[at + 1]);
        }
        return map;
    }

    static String json(Object value) {
        List<String> parts = new ArrayList<>();
        if (value instanceof Map) {
            for (Map.Entry<?, ?> one : ((Map<?, ?>) value).entrySet()) {
                parts.add(json(one.getKey().toString()) + ": " + json(one.getValue()));
            }
            return "{" + String.join(", ", parts) + "}";
        }
        if (value instanceof Iterable) {
            for (Object one : (Iterable<?>) value) {
                parts.add(json(one));
            }
            return "[" + String.join(", ", parts) + "]";
        }
        if (value instanceof String) {
            String text = (String) value;
            return '"' + text.replace("\\", "\\\\").replace("\"", "\\\"").replaceAll("\\s", " ") + '"';
        }
        return String.valueOf(value);
    }
}
