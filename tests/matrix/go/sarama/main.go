// sarama as a library of the client matrix (programme/library.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"

	. "matrix/programme"
)

var codecs = map[string]sarama.CompressionCodec{
	"none":   sarama.CompressionNone,
	"gzip":   sarama.CompressionGZIP,
	"snappy": sarama.CompressionSnappy,
	"lz4":    sarama.CompressionLZ4,
	"zstd":   sarama.CompressionZSTD,
}

type library struct {
	bootstrap []string
	run       string
	client    sarama.Client
	admin     sarama.ClusterAdmin
}

func (l library) config() *sarama.Config {
	config := sarama.NewConfig()
	config.Version = sarama.V3_9_0_0
	config.ClientID = l.run
	config.Metadata.AllowAutoTopicCreation = false
	return config
}

func bind(bootstrap, run string) Library {
	l := library{bootstrap: []string{bootstrap}, run: run}
	l.client = Must(sarama.NewClient(l.bootstrap, l.config()))
	l.admin = Must(sarama.NewClusterAdmin(l.bootstrap, l.config()))
	return l
}

func (l library) Lacks() map[string]string {
	return map[string]string{"group-consumer": "sarama has only the classic group protocol"}
}

type producer struct {
	sarama.SyncProducer
}

func (l library) Produce(codec, transactionalID string) Producer {
	config := l.config()
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Idempotent = true
	config.Net.MaxOpenRequests = 1
	config.Producer.Compression = codecs[codec]
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Flush.Frequency = 20 * time.Millisecond
	config.Producer.Transaction.ID = transactionalID
	return producer{Must(sarama.NewSyncProducer(l.bootstrap, config))}
}

func (p producer) Send(topic string, partition int32, numbers ...int) []int64 {
	messages := []*sarama.ProducerMessage{}
	for _, number := range numbers {
		one := Build(number)
		message := &sarama.ProducerMessage{Topic: topic, Partition: partition, Timestamp: time.UnixMilli(one.TimestampMs)}
		if one.Key != nil {
			message.Key = sarama.ByteEncoder(one.Key)
		}
		if one.Value != nil {
			message.Value = sarama.ByteEncoder(one.Value)
		}
		for _, header := range one.Headers {
			message.Headers = append(message.Headers, sarama.RecordHeader{Key: []byte(header.Key), Value: header.Value})
		}
		messages = append(messages, message)
	}
	Check(p.SendMessages(messages))
	offsets := []int64{}
	for _, message := range messages {
		offsets = append(offsets, message.Offset)
	}
	return offsets
}

func (p producer) Begin() { Check(p.BeginTxn()) }

func (p producer) SendOffsets(topic string, offset int64, group string) {
	at := []*sarama.PartitionOffsetMetadata{{Partition: 0, Offset: offset, LeaderEpoch: -1}}
	Check(p.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{topic: at}, group))
}

func (p producer) End(commit bool) {
	if commit {
		Check(p.CommitTxn())
	} else {
		Check(p.AbortTxn())
	}
}

func (p producer) Close() { _ = p.SyncProducer.Close() }

type reader struct {
	consumer sarama.Consumer
	part     sarama.PartitionConsumer
	topic    string
}

func (l library) Read(topic string, offset int64, committed bool) Reader {
	config := l.config()
	config.Consumer.Return.Errors = true
	if committed {
		config.Consumer.IsolationLevel = sarama.ReadCommitted
	}
	r := &reader{consumer: Must(sarama.NewConsumer(l.bootstrap, config)), topic: topic}
	r.part = Must(r.consumer.ConsumePartition(topic, 0, offset))
	return r
}

// Seek begins anew: sarama has no other way.
func (r *reader) SeekTo(offset int64) {
	Check(r.part.Close())
	r.part = Must(r.consumer.ConsumePartition(r.topic, 0, offset))
}

func drain(messages <-chan *sarama.ConsumerMessage, errs <-chan *sarama.ConsumerError) []Shown {
	found := []Shown{}
	soon := time.After(200 * time.Millisecond)
	for {
		select {
		case one := <-messages:
			if one == nil {
				return found
			}
			headers := []Header{}
			for _, header := range one.Headers {
				headers = append(headers, Header{Key: string(header.Key), Value: header.Value})
			}
			kind := "sarama does not say"
			found = append(found, Show(one.Partition, one.Offset, one.Key, one.Value, headers, one.Timestamp.UnixMilli(), kind))
		case err := <-errs:
			if err != nil {
				Check(err.Err)
			}
		case <-soon:
			return found
		}
	}
}

func (r *reader) Poll() []Shown { return drain(r.part.Messages(), r.part.Errors()) }

func (r *reader) Close() {
	_ = r.part.Close()
	_ = r.consumer.Close()
}

type member struct {
	group    sarama.ConsumerGroup
	messages chan *sarama.ConsumerMessage
	assigned atomic.Int32
	session  atomic.Value
	cancel   context.CancelFunc
	marked   []*sarama.ConsumerMessage
}

func (l library) Join(group, topic, _ string) Member {
	config := l.config()
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.Group.Heartbeat.Interval = 500 * time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	joined := &member{
		group:    Must(sarama.NewConsumerGroup(l.bootstrap, group, config)),
		messages: make(chan *sarama.ConsumerMessage, 1000),
		cancel:   cancel,
	}
	go func() {
		for ctx.Err() == nil {
			_ = joined.group.Consume(ctx, []string{topic}, joined)
		}
	}()
	return joined
}

func (m *member) Setup(session sarama.ConsumerGroupSession) error {
	m.session.Store(session)
	count := 0
	for _, places := range session.Claims() {
		count += len(places)
	}
	m.assigned.Store(int32(count))
	return nil
}

func (m *member) Cleanup(sarama.ConsumerGroupSession) error { m.assigned.Store(0); return nil }

func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for {
		select {
		case message := <-claim.Messages():
			if message == nil {
				return nil
			}
			session.MarkMessage(message, "")
			m.messages <- message
		case <-session.Context().Done():
			return nil
		}
	}
}

func (m *member) Poll() []Shown      { return drain(m.messages, nil) }
func (m *member) CountAssigned() int { return int(m.assigned.Load()) }
func (m *member) Commit()            { m.session.Load().(sarama.ConsumerGroupSession).Commit() }

func (m *member) Close() {
	m.cancel()
	_ = m.group.Close()
}

func (l library) Create(topic string, partitions int) error {
	return l.admin.CreateTopic(topic, &sarama.TopicDetail{NumPartitions: int32(partitions), ReplicationFactor: 1}, false)
}

func (l library) CountNodes() int {
	brokers, _, err := l.admin.DescribeCluster()
	Check(err)
	return len(brokers)
}

func (l library) CountPartitions(topic string) (int, error) {
	described, err := l.admin.DescribeTopics([]string{topic})
	if err != nil {
		return 0, err
	}
	if described[0].Err != sarama.ErrNoError {
		return 0, described[0].Err
	}
	return len(described[0].Partitions), nil
}

func (l library) AddPartitions(topic string, total int) {
	Check(l.admin.CreatePartitions(topic, int32(total), nil, false))
}

func (l library) AlterConfig(topic, name, value string) {
	set := sarama.IncrementalAlterConfigsEntry{Operation: sarama.IncrementalAlterConfigsOperationSet, Value: &value}
	changes := map[string]sarama.IncrementalAlterConfigsEntry{name: set}
	Check(l.admin.IncrementalAlterConfig(sarama.TopicResource, topic, changes, false))
}

func (l library) ReadConfig(topic, name string) string {
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{name}}
	for _, entry := range Must(l.admin.DescribeConfig(resource)) {
		if entry.Name == name {
			return entry.Value
		}
	}
	return ""
}

// DeleteRecords does not tell the low watermark: it is asked for.
func (l library) DeleteRecords(topic string, before int64) int64 {
	Check(l.admin.DeleteRecords(topic, map[int32]int64{0: before}))
	return Must(l.Ends(topic))[0]
}

func (l library) Groups() []string {
	return slices.Collect(maps.Keys(Must(l.admin.ListConsumerGroups())))
}

func (l library) Committed(group, topic string, partitions int32) map[string]int64 {
	places := []int32{}
	for partition := range partitions {
		places = append(places, partition)
	}
	response := Must(l.admin.ListConsumerGroupOffsets(group, map[string][]int32{topic: places}))
	found := map[string]int64{}
	for _, partition := range places {
		if block := response.GetBlock(topic, partition); block != nil {
			found[fmt.Sprint(partition)] = block.Offset
		}
	}
	return found
}

func (l library) Topics() []string {
	return slices.Collect(maps.Keys(Must(l.admin.ListTopics())))
}

func (l library) DeleteTopic(topic string) { Check(l.admin.DeleteTopic(topic)) }

func (l library) Ends(topic string) ([]int64, error) {
	if err := l.client.RefreshMetadata(topic); err != nil {
		return nil, err
	}
	first, err := l.client.GetOffset(topic, 0, sarama.OffsetOldest)
	if err != nil {
		return nil, err
	}
	last, err := l.client.GetOffset(topic, 0, sarama.OffsetNewest)
	return []int64{first, last}, err
}

func (l library) FindTime(topic string, timestampMs int64) any {
	return Must(l.client.GetOffset(topic, 0, timestampMs))
}

func (l library) NameOf(err error) string {
	var known sarama.KError
	if errors.As(err, &known) {
		return fmt.Sprintf("%d: %s", int16(known), known.Error())
	}
	return err.Error()
}

func main() { Perform(bind) }
