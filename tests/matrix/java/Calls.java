/*
 * Calls whose signatures differ between 2.1 and 4.3, found by name when the programme runs.
 */

import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.util.Collection;
import java.util.Collections;
import java.util.Map;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.Producer;
import org.apache.kafka.common.KafkaFuture;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.config.ConfigResource;

final class Calls {
    private static final String GROUP_METADATA = "org.apache.kafka.clients.consumer.ConsumerGroupMetadata";
    private static final String ALTER_OP = "org.apache.kafka.clients.admin.AlterConfigOp";

    private Calls() {}

    static Class<?> find(String name) {
        try {
            return Class.forName(name);
        } catch (ClassNotFoundException error) {
            return null;
        }
    }

    static Object call(Method method, Object on, Object... args) throws Exception {
        try {
            return method.invoke(on, args);
        } catch (InvocationTargetException error) {
            if (error.getCause() instanceof Exception) {
                throw (Exception) error.getCause();
            }
            throw error;
        }
    }

    static boolean hasConsumerProtocol() {
        return ConsumerConfig.configNames().contains("group.protocol");
    }

    /** KIP-447 (2.5) took the group's metadata in place of its name, which went with 4.0. */
    static void sendOffsets(Producer<?, ?> producer, Map<TopicPartition, OffsetAndMetadata> offsets, String group)
        throws Exception {
        Class<?> metadata = find(GROUP_METADATA);
        Object named = metadata == null ? group : metadata.getConstructor(String.class).newInstance(group);
        Class<?> type = metadata == null ? String.class : metadata;
        call(Producer.class.getMethod("sendOffsetsToTransaction", Map.class, type), producer, offsets, named);
    }

    /** all() went with 4.0 for allTopicNames() (3.1). */
    @SuppressWarnings("unchecked")
    static int countPartitions(AdminClient admin, String topic) throws Exception {
        Object result = admin.describeTopics(Collections.singletonList(topic));
        Method all;
        try {
            all = result.getClass().getMethod("allTopicNames");
        } catch (NoSuchMethodException error) {
            all = result.getClass().getMethod("all");
        }
        Map<String, TopicDescription> found =
            ((KafkaFuture<Map<String, TopicDescription>>) call(all, result)).get();
        return found.get(topic).partitions().size();
    }

    /** alterConfigs went with 4.0 for incrementalAlterConfigs (KIP-339, 2.3). */
    static void alterConfig(AdminClient admin, ConfigResource resource, String name, String value) throws Exception {
        ConfigEntry entry = new ConfigEntry(name, value);
        Class<?> op = find(ALTER_OP);
        Object change = new Config(Collections.singletonList(entry));
        if (op != null) {
            Class<?> types = find(ALTER_OP + "$OpType");
            Object set = call(types.getMethod("valueOf", String.class), null, "SET");
            change = Collections.singletonList(op.getConstructor(ConfigEntry.class, types).newInstance(entry, set));
        }
        String named = change instanceof Collection ? "incrementalAlterConfigs" : "alterConfigs";
        Object result = call(AdminClient.class.getMethod(named, Map.class), admin,
            Collections.singletonMap(resource, change));
        Method all = result.getClass().getMethod("all");
        ((KafkaFuture<?>) call(all, result)).get();
    }
}
