/*
 * The programme of the client matrix for Kafka's own Java client, 2.1 to 4.3: `Matrix BOOTSTRAP RUN STEP...`.
 *
 * Prints one JSON line a step: what was seen, "no" with a reason, or an error that nobody expected.
 * What changed its signature between those versions is called by name (Calls).
 */

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

public final class Matrix {
    static final int TAIL = 60;
    static final int ROUNDS = 16;
    final Clients clients;
    final String run;

    interface Step {
        Object run() throws Exception;
    }

    Matrix(String bootstrap, String run) {
        this.clients = new Clients(bootstrap, run);
        this.run = run;
    }

    Map<String, Object> codec(String codec) throws Exception {
        TopicPartition place = clients.create("codec-" + codec, 1);
        List<Object> told = new ArrayList<>();
        try (Producer<byte[], byte[]> producer = clients.producer("compression.type", codec, "linger.ms", "50")) {
            for (int from = 0; from < 30; from += 10) {
                told.addAll(Records.send(producer, place, from, from + 10));
            }
        }
        return Records.map("offsets", told, "records", clients.readAll(place, 30, "read_uncommitted"));
    }

    Map<String, Object> seeks() throws Exception {
        TopicPartition place = new TopicPartition(run + "-codec-none", 0);
        Map<String, Object> seen = new TreeMap<>();
        try (Consumer<byte[], byte[]> consumer = clients.consumer("auto.offset.reset", "none")) {
            consumer.assign(Collections.singletonList(place));
            consumer.seek(place, 7);
            seen.put("from 7", Records.take(consumer, 3));
            consumer.seek(place, 2);
            seen.put("back to 2", Records.take(consumer, 2));
            consumer.seekToBeginning(Collections.singletonList(place));
            seen.put("beginning", consumer.position(place));
            seen.put("first", Records.take(consumer, 1));
            consumer.seekToEnd(Collections.singletonList(place));
            seen.put("end", consumer.position(place));
            consumer.seek(place, 1000);
            try {
                Records.take(consumer, 1);
            } catch (OffsetOutOfRangeException error) {
                seen.put("beyond", "OFFSET_OUT_OF_RANGE");
            }
        }
        return seen;
    }

    Map<String, Object> times() {
        TopicPartition place = new TopicPartition(run + "-codec-none", 0);
        Map<String, Object> seen = new TreeMap<>();
        try (Consumer<byte[], byte[]> consumer = clients.consumer()) {
            for (long after : new long[] {-1, 0, 12_000, 12_001, 99_000}) {
                var found = consumer.offsetsForTimes(Collections.singletonMap(place, Records.START_MS + after));
                var at = found.get(place);
                seen.put("at " + after, at == null ? null : Arrays.asList(at.offset(), at.timestamp()));
            }
            seen.put("ends", Arrays.asList(
                consumer.beginningOffsets(Collections.singletonList(place)).get(place),
                consumer.endOffsets(Collections.singletonList(place)).get(place)));
        }
        return seen;
    }

    Map<String, Object> group(String protocol) throws Exception {
        String topic = clients.create("group-" + protocol, 2).topic();
        String group = run + "-group-" + protocol;
        String[] options = protocol.equals("classic")
            ? new String[] {"group.id", group, "auto.offset.reset", "earliest"}
            : new String[] {"group.id", group, "auto.offset.reset", "earliest", "group.protocol", protocol};
        Map<String, Object> seen = new TreeMap<>();
        clients.spread(topic, 0, 10);
        seen.put("first", clients.readGroup(topic, 10, options));
        seen.put("committed", clients.committed(group));
        clients.spread(topic, 10, 14);
        seen.put("second", clients.readGroup(topic, 4, options));
        seen.put("committed again", clients.committed(group));
        try (Consumer<byte[], byte[]> one = clients.consumer(options);
            Consumer<byte[], byte[]> other = clients.consumer(options)) {
            one.subscribe(Collections.singletonList(topic));
            other.subscribe(Collections.singletonList(topic));
            long deadline = System.currentTimeMillis() + 40_000;
            while (one.assignment().size() != 1 || other.assignment().size() != 1) {
                one.poll(Records.SHORT);
                other.poll(Records.SHORT);
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException("two members never shared the partitions");
                }
            }
            seen.put("shared", Arrays.asList(one.assignment().size(), other.assignment().size()));
        }
        return seen;
    }

    Map<String, Object> transactions() throws Exception {
        TopicPartition place = clients.create("txn", 1);
        Map<String, Object> seen = new TreeMap<>();
        String group = run + "-txn-group";
        try (Producer<byte[], byte[]> producer = clients.transactional("txn")) {
            producer.initTransactions();
            for (int from = 0; from < 9; from += 3) {
                producer.beginTransaction();
                Records.send(producer, place, from, from + 3);
                if (from == 3) {
                    producer.abortTransaction();
                } else {
                    if (from == 6) {
                        var offsets = Collections.singletonMap(place, new OffsetAndMetadata(7));
                        Calls.sendOffsets(producer, offsets, group);
                    }
                    producer.commitTransaction();
                }
            }
            seen.put("committed", clients.readAll(place, 6, "read_committed"));
            seen.put("uncommitted", clients.readAll(place, 9, "read_uncommitted"));
            seen.put("group", clients.committed(group));
            seen.put("open", open(producer, place));
            try (Producer<byte[], byte[]> fencing = clients.transactional("txn")) {
                fencing.initTransactions();
                seen.put("fenced", fenced(producer, place));
            }
        }
        return seen;
    }

    /** What a read_committed consumer sees of a transaction while it is open, and afterwards. */
    Object open(Producer<byte[], byte[]> producer, TopicPartition place) throws Exception {
        try (Consumer<byte[], byte[]> consumer = clients.consumer("isolation.level", "read_committed")) {
            consumer.assign(Collections.singletonList(place));
            consumer.seek(place, 9);
            producer.beginTransaction();
            Records.send(producer, place, 9, 11);
            int early = consumer.poll(java.time.Duration.ofSeconds(1)).count();
            producer.commitTransaction();
            return Arrays.asList(early, Records.take(consumer, 2));
        }
    }

    String fenced(Producer<byte[], byte[]> producer, TopicPartition place) throws Exception {
        try {
            producer.beginTransaction();
            Records.send(producer, place, 11, 12);
            producer.commitTransaction();
            return "not fenced";
        } catch (ExecutionException error) {
            return error.getCause().getClass().getSimpleName();
        } catch (RuntimeException error) {
            return error.getClass().getSimpleName();
        }
    }

    Map<String, Object> tail(String name, boolean committed) throws Exception {
        TopicPartition place = clients.create(name, 1);
        String level = committed ? "read_committed" : "read_uncommitted";
        int expected = committed ? 5 + 2 * (ROUNDS - ROUNDS / 4) : 5 + TAIL;
        try (Producer<byte[], byte[]> first = clients.producer()) {
            Records.send(first, place, 0, 5);
        }
        CompletableFuture<List<Object>> reading =
            CompletableFuture.supplyAsync(() -> clients.readAll(place, expected, level));
        Thread.sleep(1500);
        if (committed) {
            commitRounds(place);
        } else {
            try (Producer<byte[], byte[]> producer = clients.producer()) {
                for (int number = 5; number < 5 + TAIL; number++) {
                    Records.send(producer, place, number, number + 1);
                    Thread.sleep(20);
                }
            }
        }
        return Records.map("records", reading.get());
    }

    void commitRounds(TopicPartition place) throws Exception {
        try (Producer<byte[], byte[]> producer = clients.transactional("tail")) {
            producer.initTransactions();
            for (int round = 0; round < ROUNDS; round++) {
                producer.beginTransaction();
                Records.send(producer, place, 5 + 2 * round, 7 + 2 * round);
                if (round % 4 == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
                Thread.sleep(20);
            }
        }
    }

    Map<String, Object> admin() throws Exception {
        Map<String, Object> seen = new TreeMap<>();
        TopicPartition place = clients.create("admin", 2);
        String name = place.topic();
        try (AdminClient admin = clients.admin(); Producer<byte[], byte[]> producer = clients.producer()) {
            try {
                admin.createTopics(Collections.singletonList(new NewTopic(name, 1, (short) 1))).all().get();
            } catch (ExecutionException error) {
                seen.put("again", error.getCause().getClass().getSimpleName());
            }
            seen.put("nodes", admin.describeCluster().nodes().get().size());
            seen.put("partitions", Calls.countPartitions(admin, name));
            admin.createPartitions(Collections.singletonMap(name, NewPartitions.increaseTo(3))).all().get();
            seen.put("more partitions", clients.waitPartitions(admin, name, 3));
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, name);
            Calls.alterConfig(admin, resource, "retention.ms", "7200000");
            seen.put("config", clients.waitConfig(admin, resource, "retention.ms", "7200000"));
            Records.send(producer, place, 0, 6);
            var low = admin.deleteRecords(Collections.singletonMap(place, RecordsToDelete.beforeOffset(4)));
            seen.put("low watermark", low.lowWatermarks().get(place).get().lowWatermark());
            seen.put("left", clients.readAll(place, 2, "read_uncommitted"));
            seen.put("groups", admin.listConsumerGroups().all().get().stream()
                .filter(one -> one.groupId().startsWith(run)).count() > 0);
            admin.deleteTopics(Collections.singletonList(name)).all().get();
            seen.put("deleted", clients.waitGone(admin, name));
        }
        return seen;
    }

    void perform(String step) {
        Map<String, Object> line = new TreeMap<>();
        line.put("step", step);
        long begun = System.currentTimeMillis();
        try {
            if (step.equals("group-consumer") && !Calls.hasConsumerProtocol()) {
                line.put("no", "the client is older than KIP-848");
            } else {
                line.put("seen", seen(step));
            }
        } catch (Exception | AssertionError error) {
            line.put("error", String.valueOf(error));
            error.printStackTrace();
        }
        line.put("ms", System.currentTimeMillis() - begun);
        System.out.println(Records.json(line));
    }

    Object seen(String step) throws Exception {
        if (step.startsWith("codec-")) {
            return codec(step.substring(6));
        }
        switch (step) {
            case "seeks": return seeks();
            case "times": return times();
            case "group-classic": return group("classic");
            case "group-consumer": return group("consumer");
            case "transactions": return transactions();
            case "tail": return tail("tail", false);
            case "tail-committed": return tail("tail-committed", true);
            case "admin": return admin();
            default: throw new IllegalArgumentException(step);
        }
    }

    public static void main(String[] args) {
        Matrix matrix = new Matrix(args[0], args[1]);
        for (String step : Arrays.copyOfRange(args, 2, args.length)) {
            matrix.perform(step);
        }
        System.exit(0);
    }
}
