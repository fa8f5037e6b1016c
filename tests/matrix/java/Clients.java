/*
 * Producers, consumers and admin clients of one run, and what every step does with them.
 */

import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.Consumer;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

final class Clients {
    final String bootstrap;
    final String run;

    Clients(String bootstrap, String run) {
        this.bootstrap = bootstrap;
        this.run = run;
    }

    private Properties properties(String... options) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", bootstrap);
        properties.put("client.id", run);
        for (int at = 0; at < options.length; at += 2) {
            properties.put(options[at], options[at + 1]);
        }
        return properties;
    }

    Producer<byte[], byte[]> producer(String... options) {
        Properties properties = properties("acks", "all", "enable.idempotence", "true");
        properties.putAll(properties(options));
        return new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer());
    }

    Producer<byte[], byte[]> transactional(String name) {
        return producer("transactional.id", run + "-" + name);
    }

    Consumer<byte[], byte[]> consumer(String... options) {
        Properties properties = properties("enable.auto.commit", "false");
        properties.putAll(properties(options));
        return new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer());
    }

    AdminClient admin() {
        return AdminClient.create(properties());
    }

    /** Creates a topic and waits until its leaders answer; its partition 0. */
    TopicPartition create(String name, int partitions) throws Exception {
        String topic = run + "-" + name;
        try (AdminClient admin = admin(); Consumer<byte[], byte[]> consumer = consumer()) {
            admin.createTopics(Collections.singletonList(new NewTopic(topic, partitions, (short) 1))).all().get();
            waitPartitions(admin, topic, partitions);
            for (int partition = 0; partition < partitions; partition++) {
                consumer.endOffsets(Collections.singletonList(new TopicPartition(topic, partition)));
            }
        }
        return new TopicPartition(topic, 0);
    }

    int waitPartitions(AdminClient admin, String topic, int partitions) throws Exception {
        long deadline = System.currentTimeMillis() + Records.PATIENCE_MS;
        int found = 0;
        while (found != partitions && System.currentTimeMillis() < deadline) {
            try {
                found = Calls.countPartitions(admin, topic);
            } catch (java.util.concurrent.ExecutionException error) {
                Thread.sleep(50);
            }
        }
        return found;
    }

    /** The value read back; a broker hears of a change from its controller. */
    String waitConfig(AdminClient admin, ConfigResource resource, String name, String wanted) throws Exception {
        long deadline = System.currentTimeMillis() + Records.PATIENCE_MS;
        String value = null;
        while (!wanted.equals(value) && System.currentTimeMillis() < deadline) {
            value = admin.describeConfigs(Collections.singletonList(resource)).all().get().get(resource)
                .get(name).value();
        }
        return value;
    }

    boolean waitGone(AdminClient admin, String topic) throws Exception {
        long deadline = System.currentTimeMillis() + Records.PATIENCE_MS;
        while (admin.listTopics().names().get().contains(topic) && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        return !admin.listTopics().names().get().contains(topic);
    }

    /** Reads `count` records of a partition from its beginning. */
    List<Object> readAll(TopicPartition place, int count, String level) {
        try (Consumer<byte[], byte[]> consumer = consumer("isolation.level", level)) {
            consumer.assign(Collections.singletonList(place));
            consumer.seekToBeginning(Collections.singletonList(place));
            return Records.take(consumer, count);
        }
    }

    /** Sends records [from, until) to partitions 0 and 1 in turn. */
    void spread(String topic, int from, int until) throws Exception {
        try (Producer<byte[], byte[]> producer = producer()) {
            for (int number = from; number < until; number++) {
                Records.send(producer, new TopicPartition(topic, number % 2), number, number + 1);
            }
        }
    }

    /** What a member of the group reads before it commits and leaves, by partition and offset. */
    List<Object> readGroup(String topic, int count, String... options) {
        try (Consumer<byte[], byte[]> consumer = consumer(options)) {
            consumer.subscribe(Collections.singletonList(topic));
            List<Object> seen = Records.take(consumer, count);
            consumer.commitSync();
            seen.sort(Comparator.comparing(one -> (Integer) ((List<?>) one).get(0))
                .thenComparing(one -> (Long) ((List<?>) one).get(1)));
            return seen;
        }
    }

    Map<String, Object> committed(String group) throws Exception {
        Map<String, Object> seen = new TreeMap<>();
        try (AdminClient admin = admin()) {
            Map<TopicPartition, OffsetAndMetadata> offsets =
                admin.listConsumerGroupOffsets(group).partitionsToOffsetAndMetadata().get();
            offsets.forEach((place, at) -> seen.put(place.toString(), at.offset()));
        }
        return seen;
    }
}
