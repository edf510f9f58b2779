// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"testing"

	"github.com/gputrace/gputrace/internal/elfimage"
)

// packed packs bytes with xz.
func packed(t testing.TB, b []byte, args ...string) []byte {
	t.Helper()
	path := written(t, "data", b)
	output(t, "xz", append(args, path)...)
	out, err := os.ReadFile(path + ".xz")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUnxzEqualsXZ(t *testing.T) {
	text := bytes.Repeat([]byte("a line of text that packs well\n"), 5000)
	for _, want := range [][]byte{nil, {1}, text} {
		for _, args := range [][]string{nil, {"-0"}, {"-9"}, {"--check=none"}, {"--check=crc32"}, {"--check=sha256"}, {"--block-size=4096"},
			{"-T2"}} {
			got, err := unxz(packed(t, want, args...), len(text))
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("xz %v of %d bytes: got %d, error %v", args, len(want), len(got), err)
			}
		}
	}
}

// TestUnxzRefuses has what must not be unpacked: more than the limit, a dictionary above 64 MiB, another filter, damage.
func TestUnxzRefuses(t *testing.T) {
	text := bytes.Repeat([]byte("a line of text that packs well\n"), 5000)
	good := packed(t, text)
	flip := func(at int) []byte {
		b := slices.Clone(good)
		b[(at+len(b))%len(b)] ^= 0x10
		return b
	}
	for name, b := range map[string][]byte{
		"nothing": nil, "magic": flip(0), "stream flags": flip(7), "header sum": flip(9), "block header": flip(14), "data": flip(60),
		"cut": good[:len(good)/2], "header only": good[:xzHeader], "a bomb": packed(t, make([]byte, 8<<20)),
		"dictionary": packed(t, text, "--lzma2=dict=128MiB"), "filter": packed(t, text, "--x86", "--lzma2"),
		"two blocks above the limit": packed(t, append(slices.Clone(text), text...), "--block-size=155000"),
	} {
		out, err := unxz(b, len(text))
		if out != nil || !errors.Is(err, elfimage.ErrFormat) {
			t.Errorf("%s: got %d bytes, error %v", name, len(out), err)
		}
	}
}
