// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSourceLines(t *testing.T) {
	open := func(string) io.Reader {
		return strings.NewReader("one\r\n  two\tx\n" + strings.Repeat("y", maxSourceLine+10) + "\nfour")
	}
	for line, want := range map[int]string{1: "one", 2: "two x", 3: strings.Repeat("y", maxSourceLine), 4: "four", 5: "", 0: ""} {
		place := Place{"f", line}
		require.Equal(t, want, SourceLines(open, []Place{place})[place], line)
	}
	require.Empty(t, SourceLines(nil, []Place{{"f", 1}}))
}

func FuzzSource(f *testing.F) {
	f.Add([]byte("a\nb\n"), 2)
	f.Fuzz(func(t *testing.T, content []byte, line int) {
		place := Place{"f", line}
		text := SourceLines(func(string) io.Reader { return strings.NewReader(string(content)) }, []Place{place})[place]
		if strings.ContainsAny(text, "\n\r\t\x1b\x00") {
			t.Fatalf("%q", text)
		}
	})
}
