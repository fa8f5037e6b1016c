#!/bin/sh
# Runs the class that Kafka's script of this name runs, with the variables that Kafka's own scripts read.
set -eu
case $(basename "$0") in
kafka-server-start.sh) class=kafka.Kafka ;;
kafka-storage.sh) class=kafka.tools.StorageTool ;;
kafka-topics.sh) class=org.apache.kafka.tools.TopicCommand ;;
*) echo "unknown: $0" >&2 && exit 2 ;;
esac
# Options are separated by spaces, as in Kafka's scripts.
# shellcheck disable=SC2086
exec java ${KAFKA_HEAP_OPTS:--Xmx256m} ${KAFKA_LOG4J_OPTS:-} ${KAFKA_OPTS:-} -XX:TieredStopAtLevel=1 \
    -cp '/opt/kafka/libs/*' "$class" "$@"
