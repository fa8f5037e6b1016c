import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Java's own clients for bench.shape: ADDRESS TOPIC PARTITIONS GROUPS RECORD_BYTES, then commands on stdin.
 *
 * settle: write until each group has read from every partition; "settled". produce RATE SECONDS: acks=all, on schedule,
 * partition after partition; "sent N", once all are acknowledged, or "failed WHY". drain SECONDS: wait until every group
 * has those N; "late", and the lateness of each record and group in ns, from when the record was due.
 */
public class TailClients {
    /** The producer is idempotent: its first five batches of a partition may be duplicates (NUM_BATCHES_TO_RETAIN). */
    static final int ROUNDS = 6;
    static String topic;
    static int partitions;
    static int recordBytes;
    static final List<Group> groups = new ArrayList<>();
    static volatile String failure;

    /** A consumer of all partitions from their ends, in a thread of its own. */
    static class Group extends Thread {
        final KafkaConsumer<byte[], byte[]> consumer;
        final List<long[]> read = new ArrayList<>();
        final boolean[] seen = new boolean[partitions];

        Group(String address) {
            setDaemon(true);
            consumer = new KafkaConsumer<>(Map.of("bootstrap.servers", address, "enable.auto.commit", "false"),
                new ByteArrayDeserializer(), new ByteArrayDeserializer());
            List<TopicPartition> all = IntStream.range(0, partitions)
                .mapToObj(index -> new TopicPartition(topic, index)).collect(Collectors.toList());
            consumer.assign(all);
            consumer.seekToEnd(all);
        }

        @Override
        public void run() {
            while (true) {
                var records = consumer.poll(Duration.ofMillis(500));
                long now = System.nanoTime();
                synchronized (read) {
                    for (var record : records) {
                        seen[record.partition()] = true;
                        long due = ByteBuffer.wrap(record.value()).getLong();
                        read.add(new long[] {due, now - due});
                    }
                }
            }
        }

        boolean isSettled() {
            synchronized (read) {
                for (boolean one : seen)
                    if (!one)
                        return false;
                return true;
            }
        }

        List<Long> lateSince(long begun) {
            synchronized (read) {
                return read.stream().filter(one -> one[0] >= begun).map(one -> one[1]).collect(Collectors.toList());
            }
        }
    }

    static void send(KafkaProducer<byte[], byte[]> producer, int partition, long due) {
        byte[] value = new byte[recordBytes];
        ByteBuffer.wrap(value).putLong(due);
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            if (error != null)
                failure = error.toString();
        });
    }

    static void settle(KafkaProducer<byte[], byte[]> producer) throws InterruptedException {
        for (int round = 0; round < ROUNDS || !groups.stream().allMatch(Group::isSettled); round++) {
            for (int index = 0; index < partitions; index++)
                send(producer, index, System.nanoTime());
            producer.flush();
            long until = System.nanoTime() + (round < ROUNDS ? 0 : 1_000_000_000L);
            while (System.nanoTime() < until && !groups.stream().allMatch(Group::isSettled))
                Thread.sleep(50);
        }
    }

    static int produce(KafkaProducer<byte[], byte[]> producer, long begun, double rate, double seconds)
            throws InterruptedException {
        int count = (int) (rate * seconds);
        for (int number = 0; number < count; number++) {
            long due = begun + (long) (number / rate * 1e9);
            long ahead = due - System.nanoTime();
            if (ahead > 0)
                Thread.sleep(ahead / 1_000_000, (int) (ahead % 1_000_000));
            send(producer, number % partitions, due);
        }
        producer.flush();
        return count;
    }

    static String drain(long begun, int count, double seconds) throws InterruptedException {
        long until = System.nanoTime() + (long) (seconds * 1e9);
        while (System.nanoTime() < until && groups.stream().anyMatch(one -> one.lateSince(begun).size() < count))
            Thread.sleep(100);
        return groups.stream().flatMap(one -> one.lateSince(begun).stream()).map(String::valueOf)
            .collect(Collectors.joining(" "));
    }

    public static void main(String[] args) throws Exception {
        topic = args[1];
        partitions = Integer.parseInt(args[2]);
        recordBytes = Integer.parseInt(args[4]);
        for (int number = 0; number < Integer.parseInt(args[3]); number++)
            groups.add(new Group(args[0]));
        groups.forEach(Thread::start);
        var producer = new KafkaProducer<>(Map.of("bootstrap.servers", args[0], "acks", "all", "linger.ms", "5"),
            new ByteArraySerializer(), new ByteArraySerializer());
        var commands = new BufferedReader(new InputStreamReader(System.in));
        long begun = 0;
        int count = 0;
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "settle" -> {
                    settle(producer);
                    System.out.println("settled");
                }
                case "produce" -> {
                    failure = null;
                    begun = System.nanoTime();
                    count = produce(producer, begun, Double.parseDouble(words[1]), Double.parseDouble(words[2]));
                    System.out.println(failure == null ? "sent " + count : "failed " + failure);
                }
                default -> System.out.println("late " + drain(begun, count, Double.parseDouble(words[1])));
            }
        }
    }
}
