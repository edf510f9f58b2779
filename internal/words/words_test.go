// SPDX-License-Identifier: Apache-2.0

package words

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// hostile are names that a traced program could have, and what is shown of them.
var hostile = []struct {
	what, name        string
	valid, line, text string
}{
	{what: "nothing", name: ""},
	{"a plain name", "train.py:41 main", "train.py:41 main", "train.py:41 main", "train.py:41 main"},
	{"letters of all kinds", "Größe_模型_🙂", "Größe_模型_🙂", "Größe_模型_🙂", "Größe_模型_🙂"},
	{"a line of ours", "x\nTotal 0 B", "x\nTotal 0 B", "x Total 0 B", "x\nTotal 0 B"},
	{"columns", "a\tb", "a\tb", "a b", "a\tb"},
	{"a carriage return", "a\rb", "a\rb", "a�b", "a�b"},
	{"other ends of lines", "a\vb\fc\u0085d\u2028e\u2029f", "a\vb\fc\u0085d\u2028e\u2029f", "a�b�c�d�e�f", "a�b�c�d�e�f"},
	{"a colour", "\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m", "�[31mred�[0m", "�[31mred�[0m"},
	{"a title of the window", "\x1b]0;owned\a", "\x1b]0;owned\a", "�]0;owned�", "�]0;owned�"},
	{"an 8-bit escape", "\u009b2J", "\u009b2J", "�2J", "�2J"},
	{"a backspace", "ab\b\bcd", "ab\b\bcd", "ab��cd", "ab��cd"},
	{"a zero", "a\x00b", "a\x00b", "a�b", "a�b"},
	{"delete", "a\x7fb", "a\x7fb", "a�b", "a�b"},
	{"text turned round", "a\u202egnp.exe", "a\u202egnp.exe", "a�gnp.exe", "a�gnp.exe"},
	{"isolates", "\u2066a\u2069", "\u2066a\u2069", "�a�", "�a�"},
	{"no width", "a\u200bb\ufeffc", "a\u200bb\ufeffc", "a�b�c", "a�b�c"},
	{"a wide space", "a\u00a0b\u3000c", "a\u00a0b\u3000c", "a�b�c", "a�b�c"},
	{"a byte that is no UTF-8", "a\xffb", "a�b", "a�b", "a�b"},
	{"a run of them", "a\xff\xfe\xfdb", "a�b", "a�b", "a�b"},
	{"a cut character", "a\xe6\xa8", "a�", "a�", "a�"},
	{"a surrogate", "a\xed\xa0\x80b", "a�b", "a�b", "a�b"},
	{"an overlong slash", "..\xc0\xaf..", "..�..", "..�..", "..�.."},
	{"the replacement itself", "�", "�", "�", "�"},
}

func TestHostileNames(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.what, func(t *testing.T) {
			require.Equal(t, c.valid, Valid(c.name))
			require.Equal(t, c.line, Line(c.name))
			require.Equal(t, c.text, Text(c.name))
			require.Equal(t, c.line, Line(c.line), "what is safe stays")
			require.True(t, utf8.ValidString(Line(c.name)))
		})
	}
}

func TestCut(t *testing.T) {
	long := strings.Repeat("名", 1<<20)
	for _, c := range []struct {
		name string
		n    int
		want string
	}{
		{"", 1, ""}, {"a", 1, "a"}, {"ab", 1, "…"}, {"ab", 2, "ab"}, {"abc", 2, "a…"},
		{"äöü", 3, "äöü"}, {"äöüß", 3, "äö…"}, {"a\xff\xffb", 3, "a\xff…"}, {long, 4, "名名名…"},
	} {
		require.Equal(t, c.want, Cut(c.name, c.n))
	}
}

func FuzzLine(f *testing.F) {
	for _, c := range hostile {
		f.Add(c.name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		line := Line(name)
		require.True(t, utf8.ValidString(line))
		require.NotContains(t, line, "\n")
		for _, r := range line {
			require.Equal(t, r, printable(r))
		}
		require.Equal(t, line, Line(line))
	})
}
