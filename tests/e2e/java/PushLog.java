import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetry;
import org.apache.kafka.server.telemetry.ClientTelemetryReceiver;

/** A broker's plugin that takes what clients push (KIP-714) and says so in the broker's log, a line each. */
public class PushLog implements MetricsReporter, ClientTelemetry {
    @Override
    public ClientTelemetryReceiver clientReceiver() {
        return (context, payload) -> System.out.println(
                "PushLog client=" + context.clientId()
                        + " instance=" + payload.clientInstanceId()
                        + " terminating=" + payload.isTerminating()
                        + " type=" + payload.contentType()
                        + " bytes=" + payload.data().remaining()
                        + " listener=" + context.listenerName());
    }

    @Override
    public void init(List<KafkaMetric> metrics) {
    }

    @Override
    public void metricChange(KafkaMetric metric) {
    }

    @Override
    public void metricRemoval(KafkaMetric metric) {
    }

    @Override
    public void close() {
    }

    @Override
    public void configure(Map<String, ?> configs) {
    }
}
