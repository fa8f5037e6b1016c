package programme

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	patience   = 40 * time.Second
	tail       = 60
	rounds     = 16
	retryAfter = 50 * time.Millisecond
)

type run struct {
	library Library
	name    string
}

type seen = map[string]any

func wait(what string, check func() bool) {
	for deadline := time.Now().Add(patience); !check(); time.Sleep(retryAfter) {
		if time.Now().After(deadline) {
			panic(Failure{fmt.Errorf("in vain: %s", what)})
		}
	}
}

func take(poll func() []Shown, count int) []Shown {
	found := []Shown{}
	for deadline := time.Now().Add(patience); len(found) < count; {
		found = append(found, poll()...)
		if time.Now().After(deadline) {
			panic(Failure{fmt.Errorf("read %d of %d records", len(found), count)})
		}
	}
	return found
}

// attempt calls, and gives Kafka's name of a failure, or says that the library has no such call.
func (r run) attempt(call func() any) (said any) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case Failure:
			said = r.library.NameOf(failed.Err)
		case Lacks:
			said = "no: " + string(failed)
		default:
			panic(failed)
		}
	}()
	return call()
}

func (r run) create(name string, partitions int) string {
	topic := r.name + "-" + name
	Check(r.library.Create(topic, partitions))
	wait("metadata name the topic", func() bool {
		found, err := r.library.CountPartitions(topic)
		return err == nil && found == partitions
	})
	wait("its leader answers", func() bool {
		_, err := r.library.Ends(topic)
		return err == nil
	})
	return topic
}

func (r run) readAll(topic string, count int, committed bool) []Shown {
	reader := r.library.Read(topic, 0, committed)
	defer reader.Close()
	return take(reader.Poll, count)
}

func numbers(from, until int) []int {
	all := []int{}
	for number := from; number < until; number++ {
		all = append(all, number)
	}
	return all
}

func (r run) codec(codec string) any {
	topic := r.create("codec-"+codec, 1)
	producer := r.library.Produce(codec, "")
	defer producer.Close()
	told := []int64{}
	for from := 0; from < 30; from += 10 {
		told = append(told, producer.Send(topic, 0, numbers(from, from+10)...)...)
	}
	return seen{"offsets": told, "records": r.readAll(topic, 30, false)}
}

func (r run) seeks() any {
	topic := r.name + "-codec-none"
	ends := Must(r.library.Ends(topic))
	reader := r.library.Read(topic, 7, false)
	defer reader.Close()
	found := seen{"ends": ends, "from 7": take(reader.Poll, 3)[:3]}
	reader.SeekTo(2)
	found["back to 2"] = take(reader.Poll, 2)[:2]
	reader.SeekTo(ends[0])
	found["first"] = take(reader.Poll, 1)[:1]
	reader.SeekTo(ends[1])
	found["end"] = len(reader.Poll())
	found["beyond"] = r.attempt(func() any {
		reader.SeekTo(1000)
		return take(reader.Poll, 1)
	})
	return found
}

func (r run) times() any {
	topic := r.name + "-codec-none"
	found := seen{"ends": Must(r.library.Ends(topic))}
	for _, after := range []int64{-1, 0, 12_000, 12_001, 99_000} {
		found[fmt.Sprint("at ", after)] = r.library.FindTime(topic, StartMs+after)
	}
	return found
}

func (r run) spread(topic string, from, until int) {
	producer := r.library.Produce("none", "")
	defer producer.Close()
	for _, number := range numbers(from, until) {
		producer.Send(topic, int32(number%2), number)
	}
}

func (r run) readGroup(group, topic, protocol string, count int) []Shown {
	member := r.library.Join(group, topic, protocol)
	defer member.Close()
	found := take(member.Poll, count)
	member.Commit()
	slices.SortFunc(found, func(one, other Shown) int {
		if one[0] != other[0] {
			return int(one[0].(int32) - other[0].(int32))
		}
		return int(one[1].(int64) - other[1].(int64))
	})
	return found
}

func (r run) group(protocol string) any {
	topic, group := r.create("group-"+protocol, 2), r.name+"-group-"+protocol
	r.spread(topic, 0, 10)
	found := seen{"first": r.readGroup(group, topic, protocol, 10)}
	found["committed"] = r.library.Committed(group, topic, 2)
	r.spread(topic, 10, 14)
	found["second"] = r.readGroup(group, topic, protocol, 4)
	found["committed again"] = r.library.Committed(group, topic, 2)
	one, other := r.library.Join(group, topic, protocol), r.library.Join(group, topic, protocol)
	defer one.Close()
	defer other.Close()
	wait("two members share the partitions", func() bool {
		one.Poll()
		other.Poll()
		return one.CountAssigned() == 1 && other.CountAssigned() == 1
	})
	found["shared"] = []int{1, 1}
	return found
}

func (r run) transactions() any {
	topic, group := r.create("txn", 1), r.name+"-txn-group"
	producer := r.library.Produce("none", r.name+"-txn")
	defer producer.Close()
	for _, from := range []int{0, 3, 6} {
		producer.Begin()
		producer.Send(topic, 0, numbers(from, from+3)...)
		if from == 6 {
			producer.SendOffsets(topic, 7, group)
		}
		producer.End(from != 3)
	}
	found := seen{"committed": r.readAll(topic, 6, true), "uncommitted": r.readAll(topic, 9, false)}
	found["group"] = r.library.Committed(group, topic, 1)
	found["open"] = r.open(producer, topic)
	fencing := r.library.Produce("none", r.name+"-txn")
	defer fencing.Close()
	fencing.Begin()
	fencing.Send(topic, 0, 11)
	fencing.End(true)
	found["fenced"] = r.attempt(func() any {
		producer.Begin()
		producer.Send(topic, 0, 12)
		producer.End(true)
		return "not fenced"
	})
	return found
}

// open says what read_committed sees of a transaction while it is open, and afterwards.
func (r run) open(producer Producer, topic string) any {
	reader := r.library.Read(topic, 9, true)
	defer reader.Close()
	producer.Begin()
	producer.Send(topic, 0, 9, 10)
	early := 0
	for range 5 {
		early += len(reader.Poll())
	}
	producer.End(true)
	return []any{early, take(reader.Poll, 2)}
}

func (r run) tail(name string, committed bool) any {
	topic := r.create(name, 1)
	producer := r.library.Produce("none", "")
	producer.Send(topic, 0, numbers(0, 5)...)
	producer.Close()
	count := 5 + tail
	if committed {
		count = 5 + 2*(rounds-rounds/4)
	}
	reading := make(chan any, 1)
	go func() {
		reading <- r.attempt(func() any { return r.readAll(topic, count, committed) })
	}()
	time.Sleep(1500 * time.Millisecond)
	if committed {
		r.commitRounds(topic)
	} else {
		producer = r.library.Produce("none", "")
		defer producer.Close()
		for _, number := range numbers(5, 5+tail) {
			producer.Send(topic, 0, number)
			time.Sleep(20 * time.Millisecond)
		}
	}
	records, isRead := (<-reading).([]Shown)
	if !isRead {
		panic(Failure{fmt.Errorf("the tailing reader has not seen all")})
	}
	return seen{"records": records}
}

func (r run) commitRounds(topic string) {
	producer := r.library.Produce("none", r.name+"-tail")
	defer producer.Close()
	for round := range rounds {
		producer.Begin()
		producer.Send(topic, 0, 5+2*round, 6+2*round)
		producer.End(round%4 != 2)
		time.Sleep(20 * time.Millisecond)
	}
}

func (r run) admin() any {
	topic, library := r.create("admin", 2), r.library
	producer := library.Produce("none", "")
	producer.Send(topic, 0, numbers(0, 6)...)
	producer.Close()
	return seen{
		"again":      r.attempt(func() any { Check(library.Create(topic, 1)); return "created" }),
		"nodes":      r.attempt(func() any { return library.CountNodes() }),
		"partitions": r.attempt(func() any { return Must(library.CountPartitions(topic)) }),
		"more partitions": r.attempt(func() any {
			library.AddPartitions(topic, 3)
			wait("the partitions are there", func() bool {
				found, err := library.CountPartitions(topic)
				return err == nil && found == 3
			})
			return 3
		}),
		"config": r.attempt(func() any {
			library.AlterConfig(topic, "retention.ms", "7200000")
			wait("it is told", func() bool { return library.ReadConfig(topic, "retention.ms") == "7200000" })
			return library.ReadConfig(topic, "retention.ms")
		}),
		"low watermark": r.attempt(func() any { return library.DeleteRecords(topic, 4) }),
		"groups": r.attempt(func() any {
			return slices.ContainsFunc(library.Groups(), func(one string) bool { return strings.HasPrefix(one, r.name) })
		}),
		"deleted": r.attempt(func() any {
			library.DeleteTopic(topic)
			wait("the topic is gone", func() bool { return !slices.Contains(library.Topics(), topic) })
			return true
		}),
	}
}

func (r run) see(step string) any {
	kind, which, _ := strings.Cut(step, "-")
	switch kind {
	case "codec":
		return r.codec(which)
	case "group":
		return r.group(which)
	case "tail":
		return r.tail(step, which == "committed")
	case "seeks":
		return r.seeks()
	case "times":
		return r.times()
	case "transactions":
		return r.transactions()
	case "admin":
		return r.admin()
	}
	panic(Failure{fmt.Errorf("no step %s", step)})
}

func (r run) line(step string) (line seen) {
	begun := time.Now()
	defer func() {
		if failed := recover(); failed != nil {
			line = seen{"step": step, "error": fmt.Sprint(failed)}
		}
		line["ms"] = time.Since(begun).Milliseconds()
	}()
	if reason, is := r.library.Lacks()[step]; is {
		return seen{"step": step, "no": reason}
	}
	return seen{"step": step, "seen": r.see(step)}
}

// Perform runs `PROGRAM BOOTSTRAP RUN STEP...`: one JSON line a step.
func Perform(bind func(bootstrap, run string) Library) {
	run := run{bind(os.Args[1], os.Args[2]), os.Args[2]}
	printer := json.NewEncoder(os.Stdout)
	for _, step := range os.Args[3:] {
		Check(printer.Encode(run.line(step)))
	}
}
