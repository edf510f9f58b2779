// SPDX-License-Identifier: Apache-2.0

package procargs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	a, err := Parse([]byte("\x03\x00\x00\x00/opt/homebrew/bin/python3\x00\x00\x00\x00python3\x00train.py\x00\x00HOME=/Users/x\x00A=\x00\x00ptr_munge=\x00"))
	require.NoError(t, err)
	require.Equal(t, &Args{"/opt/homebrew/bin/python3", []string{"python3", "train.py", ""}, []string{"HOME=/Users/x", "A="}}, a)
	a, err = Parse([]byte("\x01\x00\x00\x00/bin/x\x00x\x00"))
	require.NoError(t, err)
	require.Equal(t, &Args{Exe: "/bin/x", Cmdline: []string{"x"}}, a, "no environment")
	for _, text := range []string{"", "abc", "\x01\x00\x00\x00", "\x01\x00\x00\x00/x\x00", "\x01\x00\x00\x00/x\x00y",
		"\xff\xff\xff\xff/x\x00y\x00", "\x00\x00\x00\x00\x00"} {
		_, err := Parse([]byte(text))
		require.ErrorIs(t, err, ErrFormat, "%q", text)
	}
}

// FuzzParse: no bytes make it panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00/x\x00y\x00Z=1\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := Parse(b)
		if err == nil && a.Exe == "" {
			t.Fatal("no program")
		}
	})
}
