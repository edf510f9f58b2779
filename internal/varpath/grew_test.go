// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGrew: of the containers on a way the one that has grown most, by how many elements.
func TestGrew(t *testing.T) {
	for _, c := range []struct {
		before, now string
		want        Growth
	}{
		{"a.py:8 main() local logs['z'][0..151]", "a.py:9 main() local logs['z'][0..288]", Growth{"logs['z']", 152, 289, false}},
		{"SESSIONS['eu', 'us'][144 keys].layers[0..1][0..3]", "SESSIONS['eu', 'us'][216 keys].layers[0..1][0..4]",
			Growth{"SESSIONS['eu', 'us']", 144, 216, true}},
		{"model[0, 2, 4].activations[0..9]", "model[0, 2, 4].activations[0..19]", Growth{"model[0, 2, 4].activations", 10, 20, false}},
		{"base.lora_A['task0'..'task3'].weight", "base.lora_A['task0'..'task25'].weight", Growth{"base.lora_A", 4, 26, true}},
		{"seen['a', 'b']", "seen[7 keys 'user*']", Growth{"seen", 2, 7, true}},
		{"kept[3]", "kept[0..9]", Growth{"kept", 1, 10, false}},
		{"kept[7 items in 0..11]", "kept[12 items in 0..30]", Growth{"kept", 7, 12, false}},
		{"kept[-2..1]", "kept[-8..1]", Growth{"kept", 4, 10, false}},
	} {
		got, ok := Grew(c.before, c.now)
		require.True(t, ok, c.now)
		require.Equal(t, c.want, got)
		_, ok = Grew(c.now, c.now)
		require.False(t, ok, "the same")
		_, ok = Grew(c.now, c.before)
		require.False(t, ok, "it has become smaller")
	}
	for _, c := range [][2]string{
		{"kept[0..9]", "other[0..19]"}, {"kept[0..99]", "kept[0..103]"}, {"kept[0..9]", "kept[0..10]"}, {"a…kept[0..9]", "a…kept[0..99]"},
		{"net.*[0..3]", "net.*[0..9]"}, {"kept", "kept"}, {"", ""}, {"kept['x'..'zz']", "kept[9 keys]"}, {"[0..3]", "[0..9]"}, {"kept[9..1]",
			"kept[0..9]"},
	} {
		_, ok := Grew(c[0], c[1])
		require.False(t, ok, c[1])
	}
}

// TestMany: the container with many more elements than any other of the name.
func TestMany(t *testing.T) {
	for name, want := range map[string]Growth{
		"self.cam.activations[0..390]":                                 {"self.cam.activations", 0, 391, false},
		"a.py:1 f() local q.queue[0..77][0..1]":                        {"q.queue", 0, 78, false},
		"blocks[0..1].lora_A[40 keys].weight":                          {"blocks[0..1].lora_A", 0, 40, true},
		"g.waiting[164 items in 1..327] suspended b.py:2 g() local kv": {"g.waiting", 0, 164, false},
	} {
		got, ok := Many(name, 40)
		require.True(t, ok, name)
		require.Equal(t, want, got)
		_, ok = Many(name, want.To+1)
		require.False(t, ok, "too few")
	}
	for _, name := range []string{"layers[0..95].cache[0..39]", "kept", "", "a…kept[0..99]", "net.*[0..99]", "[0..99]"} {
		_, ok := Many(name, 10)
		require.False(t, ok, name)
	}
}
