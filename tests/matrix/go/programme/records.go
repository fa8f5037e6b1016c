// Package programme is the client matrix's programme in Go, over any library: records.go says what is sent and how a
// record that was read is printed, library.go what is asked of a library, steps.go the steps.
package programme

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// StartMs is the timestamp of record 0; the next ones follow by the second.
const StartMs = 1_700_000_000_000

// Header of a record; Value nil is null.
type Header struct {
	Key   string
	Value []byte
}

// Sent is a record to be sent; nil is null.
type Sent struct {
	Key, Value  []byte
	Headers     []Header
	TimestampMs int64
}

// Shown is a record that was read, as it is printed.
type Shown []any

// Build makes record `number`: the same in every language.
func Build(number int) Sent {
	sent := Sent{TimestampMs: StartMs + int64(number)*1000}
	if number%5 != 4 {
		sent.Key = fmt.Appendf(nil, "k%d", number%3)
	}
	if number%10 != 6 {
		sent.Value = fmt.Appendf(nil, "v%d-", number)
		sent.Value = append(sent.Value, bytes.Repeat([]byte("x"), 200+number*37%400)...)
		sent.Value = append(sent.Value, 0xff, 0x00)
	}
	switch number % 4 {
	case 1:
		sent.Headers = []Header{{"number", fmt.Appendf(nil, "%d", number)}, {"empty", []byte{}}}
	case 2:
		sent.Headers = []Header{{"null", nil}}
	}
	return sent
}

func shownHex(value []byte) any {
	if value == nil {
		return nil
	}
	return hex.EncodeToString(value)
}

// Show prints a record that was read.
func Show(partition int32, offset int64, key, value []byte, headers []Header, timestampMs int64, kind string) Shown {
	var digest any
	if value != nil {
		sum := sha256.Sum256(value)
		digest = fmt.Sprintf("%d:%s", len(value), hex.EncodeToString(sum[:6]))
	}
	pairs := []any{}
	for _, header := range headers {
		pairs = append(pairs, []any{header.Key, shownHex(header.Value)})
	}
	return Shown{partition, offset, shownHex(key), digest, pairs, timestampMs, kind}
}
