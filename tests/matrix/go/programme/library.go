package programme

// Failure carries a library's error out of a step; Lacks that the library has no such call.
type (
	Failure struct{ Err error }
	Lacks   string
)

// Check panics with an error.
func Check(err error) {
	if err != nil {
		panic(Failure{err})
	}
}

// Must returns a value, or panics with the error.
func Must[T any](value T, err error) T {
	Check(err)
	return value
}

// Producer has acks=all; what it does has been answered when it returns.
type Producer interface {
	Send(topic string, partition int32, numbers ...int) []int64
	Begin()
	SendOffsets(topic string, offset int64, group string)
	End(commit bool)
	Close()
}

// Reader reads partition 0 of a topic from where it was assigned.
type Reader interface {
	SeekTo(offset int64)
	Poll() []Shown
	Close()
}

// Member is a consumer of a group.
type Member interface {
	Poll() []Shown
	CountAssigned() int
	Commit()
	Close()
}

// Library is a client library, bound to a cluster. Lacks: step -> why it cannot be run.
type Library interface {
	Lacks() map[string]string
	Produce(codec, transactionalID string) Producer
	Read(topic string, offset int64, committed bool) Reader
	Join(group, topic, protocol string) Member
	Create(topic string, partitions int) error
	CountNodes() int
	CountPartitions(topic string) (int, error)
	AddPartitions(topic string, total int)
	AlterConfig(topic, name, value string)
	ReadConfig(topic, name string) string
	DeleteRecords(topic string, before int64) int64
	Groups() []string
	Committed(group, topic string, partitions int32) map[string]int64
	Topics() []string
	DeleteTopic(topic string)
	Ends(topic string) ([]int64, error)
	FindTime(topic string, timestampMs int64) any
	NameOf(err error) string
}
