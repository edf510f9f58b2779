// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFitPlace: a line is never cut, its function from the left.
func TestFitPlace(t *testing.T) {
	for _, tt := range []struct {
		place, function string
		width           int
		want            string
	}{
		{"model.py:88", "Block.forward", 30, "model.py:88 Block.forward"},
		{"model.py:88", "Block.forward", 20, "model.py:88 forward"},
		{"model.py:88", "Block.forward", 15, "model.py:88"},
		{"model.py:88", "Block.forward", 5, "model.py:88"},
		{"serve.py:6", "Engine.__init__.<locals>.<listcomp>", 22, "serve.py:6 <listcomp>"},
		{"m.py:1", "a_function_with_a_long_name", 20, "m.py:1 a_function_w…"},
	} {
		require.Equal(t, tt.want, FitPlace(tt.place, tt.function, tt.width), tt)
	}
}

func TestFitName(t *testing.T) {
	for _, tt := range []struct {
		name  string
		width int
		want  string
	}{
		{"torch::autograd::generated::AddmmBackward0::apply", 20, "AddmmBackward0"},
		{"torch::autograd::generated::AddmmBackward0::apply", 80, "AddmmBackward0"},
		{"at::native::empty_cuda", 22, "at::native::empty_cuda"},
		{"at::native::empty_cuda", 21, "native::empty_cuda"},
		{"at::native::empty_cuda", 12, "empty_cuda"},
		{"at::native::empty_cuda", 6, "empty…"},
		{"f", 0, "…"},
		{"<line not known: it was libpython3.13.so.1.0>", 20, "<line not known: it…"},
		{"train.py:88 T.main() local self.kept[0..7]", 42, "train.py:88 T.main() local self.kept[0..7]"},
		{"train.py:88 T.main() local self.kept[0..7]", 41, "T.main() local self.kept[0..7]"},
		{"train.py:88 T.main() local self.kept[0..7]", 29, "self.kept[0..7]"},
		{"train.py:88 T.main() local self.kept[0..7]", 10, "self.kept"},
	} {
		require.Equal(t, tt.want, FitName(tt.name, tt.width), tt)
	}
}

// TestFitHolder: the variable and the last attribute stay.
func TestFitHolder(t *testing.T) {
	require.Equal(t, "trainer…preds[0..49]", FitHolder("train.py:88 main() local trainer.metrics['val', 'train'].preds[0..49]", 20))
	require.Equal(t, "kept[0..7]  ", FitHolder("kept[0..7]", 12))
	require.Equal(t, "optimizer…state    ", FitHolder("optimizer state opt.inner.state", 19))
}

// TestFitMarked: the line is there in any width, the mark as long as there is room for both.
func TestFitMarked(t *testing.T) {
	const one = "[backward between] sft.py:15 T.compute_loss"
	for width, want := range map[int]string{60: one, 43: one, 42: "[backward between] sft.py:15 compute_loss",
		36: "[backward between] sft.py:15", 27: "[…] sft.py:15 compute_loss", 22: "[…] sft.py:15 compute…", 16: "[…] sft.py:15"} {
		require.Equal(t, want, FitMarked(one, width), width)
	}
	require.Equal(t, "[backward between] a.py:1 …", FitMarked("[backward between] a.py:1 f and a.py:2 g", 38))
	require.Equal(t, "MatMul::forward", FitMarked("at::native::MatMul::forward", 16))
}

func TestFit(t *testing.T) {
	for _, row := range []struct{ in, fit, tail string }{
		{"", "     ", "     "}, {"abc", "abc  ", "abc  "}, {"abcde", "abcde", "abcde"}, {"abcdef", "abcd…", "…cdef"},
		{"äöüßéè", "äöüß…", "…üßéè"}, {"a\x1b\nb", "a� b ", "a� b "}, {"\xff", "�    ", "�    "},
	} {
		require.Equal(t, row.fit, Fit(row.in, 5))
		require.Equal(t, row.tail, FitTail(row.in, 5))
	}
}

func TestFitMiddle(t *testing.T) {
	for in, want := range map[string]string{
		"": "       ", "abc": "abc    ", "abcdefg": "abcdefg", "abcdefgh": "abc…fgh", "äöüäöüäöü": "äöü…äöü", "a\x1bb": "a�b    ",
	} {
		require.Equal(t, want, FitMiddle(in, 7))
	}
}
