// franz-go as a library of the client matrix (programme/library.go).
package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	. "matrix/programme"
)

var (
	ctx    = context.Background()
	codecs = map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}
	kinds = map[int8]string{0: "CreateTime", 1: "LogAppendTime"}
)

type library struct {
	common []kgo.Opt
	admin  *kadm.Client
}

func (l library) client(options ...kgo.Opt) *kgo.Client {
	return Must(kgo.NewClient(append(options, l.common...)...))
}

func bind(bootstrap, run string) Library {
	l := library{common: []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.ClientID(run), kgo.MetadataMinAge(50 * time.Millisecond)}}
	l.admin = kadm.NewClient(l.client())
	return l
}

func (l library) Lacks() map[string]string { return nil }

type producer struct {
	*kgo.Client
}

func (l library) Produce(codec, transactionalID string) Producer {
	options := []kgo.Opt{
		kgo.ProducerBatchCompression(codecs[codec]),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(20 * time.Millisecond),
	}
	if transactionalID != "" {
		options = append(options, kgo.TransactionalID(transactionalID))
	}
	return producer{l.client(options...)}
}

func (p producer) Send(topic string, partition int32, numbers ...int) []int64 {
	records := []*kgo.Record{}
	for _, number := range numbers {
		one := Build(number)
		record := &kgo.Record{Topic: topic, Partition: partition, Key: one.Key, Value: one.Value}
		record.Timestamp = time.UnixMilli(one.TimestampMs)
		for _, header := range one.Headers {
			record.Headers = append(record.Headers, kgo.RecordHeader(header))
		}
		records = append(records, record)
	}
	offsets := []int64{}
	for _, result := range p.ProduceSync(ctx, records...) {
		Check(result.Err)
		offsets = append(offsets, result.Record.Offset)
	}
	return offsets
}

func (p producer) Begin() { Check(p.BeginTransaction()) }

// SendOffsets asks in the protocol: kgo itself does so only for what a GroupTransactSession has consumed.
func (p producer) SendOffsets(topic string, offset int64, group string) {
	id, epoch, err := p.ProducerID(ctx)
	Check(err)
	transactionalID := p.OptValue(kgo.TransactionalID).(string)
	add := kmsg.NewPtrAddOffsetsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch, add.Group = transactionalID, id, epoch, group
	Check(kerr.ErrorForCode(Must(add.RequestWith(ctx, p.Client)).ErrorCode))
	commit := kmsg.NewPtrTxnOffsetCommitRequest()
	commit.TransactionalID, commit.ProducerID, commit.ProducerEpoch = transactionalID, id, epoch
	commit.Group = group
	partition := kmsg.NewTxnOffsetCommitRequestTopicPartition()
	partition.Offset = offset
	wanted := kmsg.NewTxnOffsetCommitRequestTopic()
	wanted.Topic, wanted.Partitions = topic, []kmsg.TxnOffsetCommitRequestTopicPartition{partition}
	commit.Topics = []kmsg.TxnOffsetCommitRequestTopic{wanted}
	Check(kerr.ErrorForCode(Must(commit.RequestWith(ctx, p.Client)).Topics[0].Partitions[0].ErrorCode))
}

func (p producer) End(commit bool) { Check(p.EndTransaction(ctx, kgo.TransactionEndTry(commit))) }

type reader struct {
	*kgo.Client
	topic    string
	assigned *atomic.Int32
}

func (l library) Read(topic string, offset int64, committed bool) Reader {
	level := kgo.ReadUncommitted()
	if committed {
		level = kgo.ReadCommitted()
	}
	at := map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().At(offset)}}
	options := []kgo.Opt{kgo.ConsumePartitions(at), kgo.FetchIsolationLevel(level)}
	return reader{Client: l.client(append(options, kgo.ConsumeResetOffset(kgo.NoResetOffset()))...), topic: topic}
}

func (r reader) SeekTo(offset int64) {
	r.SetOffsets(map[string]map[int32]kgo.EpochOffset{r.topic: {0: {Epoch: -1, Offset: offset}}})
}

func (r reader) Poll() []Shown {
	soon, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	fetches := r.PollFetches(soon)
	for _, failed := range fetches.Errors() {
		if !errors.Is(failed.Err, context.DeadlineExceeded) {
			Check(failed.Err)
		}
	}
	found := []Shown{}
	for _, one := range fetches.Records() {
		headers := []Header{}
		for _, header := range one.Headers {
			headers = append(headers, Header(header))
		}
		kind := kinds[one.Attrs.TimestampType()]
		found = append(found, Show(one.Partition, one.Offset, one.Key, one.Value, headers, one.Timestamp.UnixMilli(), kind))
	}
	return found
}

func (l library) Join(group, topic, protocol string) Member {
	assigned := &atomic.Int32{}
	count := func(sign int32) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, places map[string][]int32) {
			assigned.Add(sign * int32(len(places[topic])))
		}
	}
	options := []kgo.Opt{
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(topic), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.HeartbeatInterval(500 * time.Millisecond),
		kgo.OnPartitionsAssigned(count(1)), kgo.OnPartitionsRevoked(count(-1)), kgo.OnPartitionsLost(count(-1)),
	}
	if protocol == "consumer" {
		options = append(options, kgo.ServerSideBalancer(), kgo.Balancers(kgo.StickyBalancer()))
	}
	joined := reader{l.client(options...), topic, assigned}
	if protocol == "consumer" {
		l.checkProtocol(joined, group)
	}
	return joined
}

// checkProtocol fails where kgo fell back to the classic protocol, as it does without a word.
func (l library) checkProtocol(joined reader, group string) {
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if _, is := Must(l.admin.ListGroupsByType(ctx, []string{"consumer"}))[group]; is {
			return
		}
	}
	joined.Close()
	panic(Failure{Err: fmt.Errorf("the group is not of the consumer protocol")})
}

func (r reader) CountAssigned() int { return int(r.assigned.Load()) }
func (r reader) Commit()            { Check(r.CommitUncommittedOffsets(ctx)) }

func (l library) Create(topic string, partitions int) error {
	_, err := l.admin.CreateTopic(ctx, int32(partitions), 1, nil, topic)
	return err
}

func (l library) CountNodes() int { return len(Must(l.admin.BrokerMetadata(ctx)).Brokers) }

func (l library) CountPartitions(topic string) (int, error) {
	topics, err := l.admin.ListTopics(ctx, topic)
	if err != nil {
		return 0, err
	}
	return len(topics[topic].Partitions), topics[topic].Err
}

func (l library) AddPartitions(topic string, total int) {
	Check(Must(l.admin.UpdatePartitions(ctx, total, topic)).Error())
}

func (l library) AlterConfig(topic, name, value string) {
	changes := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: name, Value: &value}}
	Check(Must(l.admin.AlterTopicConfigs(ctx, changes, topic))[0].Err)
}

func (l library) ReadConfig(topic, name string) string {
	for _, config := range Must(l.admin.DescribeTopicConfigs(ctx, topic))[0].Configs {
		if config.Key == name {
			return config.MaybeValue()
		}
	}
	return ""
}

func (l library) DeleteRecords(topic string, before int64) int64 {
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, 0, before, -1)
	deleted := Must(l.admin.DeleteRecords(ctx, offsets))[topic][0]
	Check(deleted.Err)
	return deleted.LowWatermark
}

func (l library) Groups() []string { return Must(l.admin.ListGroups(ctx)).Groups() }

func (l library) Committed(group, topic string, partitions int32) map[string]int64 {
	found := map[string]int64{}
	responses := Must(l.admin.FetchOffsets(ctx, group))
	for partition := range partitions {
		if at, is := responses.Lookup(topic, partition); is {
			found[fmt.Sprint(partition)] = at.At
		}
	}
	return found
}

func (l library) Topics() []string { return Must(l.admin.ListTopics(ctx)).Names() }

func (l library) DeleteTopic(topic string) { Check(Must(l.admin.DeleteTopic(ctx, topic)).Err) }

func (l library) Ends(topic string) ([]int64, error) {
	ends := []int64{}
	for _, list := range []func(context.Context, ...string) (kadm.ListedOffsets, error){
		l.admin.ListStartOffsets, l.admin.ListEndOffsets,
	} {
		listed, err := list(ctx, topic)
		if err == nil {
			err = listed.Error()
		}
		if err != nil {
			return nil, err
		}
		ends = append(ends, listed[topic][0].Offset)
	}
	return ends, nil
}

func (l library) FindTime(topic string, timestampMs int64) any {
	at := Must(l.admin.ListOffsetsAfterMilli(ctx, timestampMs, topic))[topic][0]
	Check(at.Err)
	return []int64{at.Offset, at.Timestamp}
}

func (l library) NameOf(err error) string {
	var known *kerr.Error
	if errors.As(err, &known) {
		return known.Message
	}
	return err.Error()
}

func main() { Perform(bind) }
