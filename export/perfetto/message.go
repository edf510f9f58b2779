// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"math"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/gputrace/gputrace/internal/words"
)

// message is the fields of a protobuf message, encoded as they are added.
type message []byte

func (m *message) number(field protowire.Number, v uint64) {
	*m = protowire.AppendTag(*m, field, protowire.VarintType)
	*m = protowire.AppendVarint(*m, v)
}

func (m *message) double(field protowire.Number, v float64) { m.fixed(field, math.Float64bits(v)) }

func (m *message) fixed(field protowire.Number, v uint64) {
	*m = protowire.AppendTag(*m, field, protowire.Fixed64Type)
	*m = protowire.AppendFixed64(*m, v)
}

// text adds a string; what is not UTF-8 in it is replaced, as protobuf demands.
func (m *message) text(field protowire.Number, s string) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendString(*m, words.Valid(s))
}

func (m *message) bytes(field protowire.Number, b []byte) {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	*m = protowire.AppendBytes(*m, b)
}

// open begins a message within the message; what it returns closes it.
func (m *message) open(field protowire.Number) int {
	*m = protowire.AppendTag(*m, field, protowire.BytesType)
	return len(*m)
}

// close puts the length before what was added since open.
func (m *message) close(start int) {
	n := len(*m) - start
	room := protowire.SizeVarint(uint64(n))
	*m = append(*m, make([]byte, room)...)
	copy((*m)[start+room:], (*m)[start:start+n])
	protowire.AppendVarint((*m)[:start], uint64(n))
}
