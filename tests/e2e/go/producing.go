// A producer of franz-go for test_isolation_go.py: `producing BOOTSTRAP TOPIC idempotent|transactional COUNT`.
//
// Owns how franz-go is told to send many small batches. Values are the numbers 0 to COUNT-1;
// where transactional, in transactions of 50, every third of which is aborted. Prints what was
// committed, one number a line. Any record that fails ends it with an error.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const perTransaction = 50

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func produce(ctx context.Context, client *kgo.Client, from, until int) {
	var failed atomic.Value
	for number := from; number < until; number++ {
		record := &kgo.Record{Value: []byte(strconv.Itoa(number))}
		client.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(err)
			}
		})
	}
	fail(client.Flush(ctx))
	if err, is := failed.Load().(error); is {
		fail(err)
	}
}

func transact(ctx context.Context, client *kgo.Client, count int) {
	for from, round := 0, 0; from < count; from, round = from+perTransaction, round+1 {
		until := min(from+perTransaction, count)
		fail(client.BeginTransaction())
		produce(ctx, client, from, until)
		isCommit := round%3 != 2
		fail(client.EndTransaction(ctx, kgo.TransactionEndTry(isCommit)))
		for number := from; isCommit && number < until; number++ {
			fmt.Println(number)
		}
	}
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	bootstrap, topic, mode := os.Args[1], os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	fail(err)
	options := []kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.DefaultProduceTopic(topic),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerBatchMaxBytes(512),
		kgo.ProducerLinger(0),
		kgo.MetadataMinAge(20 * time.Millisecond), // a refused partition waits for the next refresh
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.ProducerBatchCompression(kgo.NoCompression()),
	}
	if mode == "transactional" {
		options = append(options, kgo.TransactionalID(topic))
	}
	client, err := kgo.NewClient(options...)
	fail(err)
	defer client.Close()
	if mode == "transactional" {
		transact(ctx, client, count)
		return
	}
	produce(ctx, client, 0, count)
	for number := range count {
		fmt.Println(number)
	}
}
