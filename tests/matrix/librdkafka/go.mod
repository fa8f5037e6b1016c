module librdkafka

go 1.21

require github.com/confluentinc/confluent-kafka-go v1.9.2
