/*
 * Kafka Streams' own step of the client matrix: `StreamsMatrix BOOTSTRAP RUN exactly-once`.
 *
 * A topology with a repartition topic, a state store and its changelog counts records by key from topic to topic with
 * exactly_once_v2; its first instance ends half-way, and another one restores the state. Told is what a read_committed
 * reader finds of the output, and the state in the changelog: offsets are not, for they depend on when transactions end.
 */

import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;

public final class StreamsMatrix {
    static final int UNTIL = 75;
    final Clients clients;
    final String bootstrap;
    final String run;
    TopicPartition input;
    TopicPartition output;

    StreamsMatrix(String bootstrap, String run) {
        this.clients = new Clients(bootstrap, run);
        this.bootstrap = bootstrap;
        this.run = run;
    }

    Topology topology() {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(input.topic(), Consumed.with(Serdes.String(), Serdes.ByteArray()))
            .filter((key, value) -> key != null && value != null)
            .selectKey((key, value) -> "by-" + key)
            .groupByKey(Grouped.with("again", Serdes.String(), Serdes.ByteArray()))
            .count(Materialized.as("counts"))
            .toStream()
            .mapValues(count -> Long.toString(count))
            .to(output.topic(), Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    KafkaStreams start() throws Exception {
        Path directory = Files.createTempDirectory("forebay-streams-");
        Properties properties = new Properties();
        properties.put(StreamsConfig.APPLICATION_ID_CONFIG, run + "-app");
        properties.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, bootstrap);
        properties.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
        properties.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, "100");
        properties.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, "0");
        properties.put(StreamsConfig.STATE_DIR_CONFIG, directory.toString());
        properties.put(StreamsConfig.REPLICATION_FACTOR_CONFIG, "1");
        properties.put("auto.offset.reset", "earliest");
        properties.put("session.timeout.ms", "6000"); // Streams does not leave its group: the next instance waits for it
        properties.put("heartbeat.interval.ms", "1000");
        KafkaStreams streams = new KafkaStreams(topology(), properties);
        streams.start();
        long deadline = System.currentTimeMillis() + Records.PATIENCE_MS;
        while (streams.state() != KafkaStreams.State.RUNNING) {
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("Streams is " + streams.state());
            }
            Thread.sleep(50);
        }
        return streams;
    }

    void produce(int from, int until, long pauseMs) throws Exception {
        try (Producer<byte[], byte[]> producer = clients.producer()) {
            for (int number = from; number < until; number++) {
                Records.send(producer, input, number, number + 1);
                Thread.sleep(pauseMs);
            }
        }
    }

    /** All that is committed of the output or the changelog, key and value as text, once there are `count` records. */
    List<List<String>> read(TopicPartition place, int count) {
        List<List<String>> seen = new ArrayList<>();
        try (Consumer<byte[], byte[]> consumer = clients.consumer("isolation.level", "read_committed")) {
            consumer.assign(Collections.singletonList(place));
            consumer.seekToBeginning(Collections.singletonList(place));
            long deadline = System.currentTimeMillis() + Records.PATIENCE_MS;
            long end = 0;
            while (System.currentTimeMillis() < deadline && (seen.size() < count || consumer.position(place) < end)) {
                for (ConsumerRecord<byte[], byte[]> one : consumer.poll(Records.SHORT)) {
                    seen.add(Arrays.asList(new String(one.key()), Records.hex(one.value(), 64)));
                }
                end = consumer.endOffsets(Collections.singletonList(place)).get(place);
            }
        }
        return seen;
    }

    /** The last value of each key: a changelog may have been compacted meanwhile. */
    Map<String, Object> state(TopicPartition changelog) {
        Map<String, Object> last = new TreeMap<>();
        read(changelog, 1).forEach(one -> last.put(one.get(0), one.get(1)));
        return last;
    }

    Map<String, Object> exactlyOnce() throws Exception {
        input = clients.create("tail-committed", 1);
        output = clients.create("out", 1);
        int counted = 0;
        for (int number = 0; number < UNTIL; number++) {
            counted += Records.record(input, number).key() != null && Records.value(number) != null ? 1 : 0;
        }
        produce(0, 5, 0);
        KafkaStreams first = start();
        produce(5, 45, 30);
        first.close(Duration.ofSeconds(30));
        produce(45, 50, 0);
        KafkaStreams second = start();
        produce(50, UNTIL, 30);
        Map<String, Object> seen = new TreeMap<>();
        seen.put("output", read(output, counted));
        second.close(Duration.ofSeconds(30));
        TopicPartition changelog = new TopicPartition(run + "-app-counts-changelog", 0);
        seen.put("changelog", state(changelog));
        seen.put("counted", counted);
        return seen;
    }

    public static void main(String[] args) throws Exception {
        StreamsMatrix matrix = new StreamsMatrix(args[0], args[1]);
        for (String step : Arrays.copyOfRange(args, 2, args.length)) {
            Map<String, Object> line = new TreeMap<>();
            line.put("step", step);
            try {
                line.put("seen", matrix.exactlyOnce());
            } catch (Exception error) {
                line.put("error", String.valueOf(error));
                error.printStackTrace();
            }
            System.out.println(Records.json(line));
        }
        System.exit(0);
    }
}
