// SPDX-License-Identifier: Apache-2.0

package words

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDidYouMean(t *testing.T) {
	list := []string{"pprof", "png", "svg", "json", "html", "parquet", "speedscope"}
	for word, want := range map[string]string{
		"pgn": "png", "jsno": "json", "jpng": "png", "htm": "html", "parqet": "parquet", "speedscop": "speedscope", "svgg": "svg", "foo": "",
		"pdf": "", "pn": "png", "parquat": "parquet", "x": "", "": "", "tables": "",
	} {
		got := DidYouMean(word, list)
		if want != "" {
			want = `: did you mean "` + want + `"?`
		}
		require.Equal(t, want, got, word)
	}
}

func TestDistance(t *testing.T) {
	for pair, want := range map[[2]string]int{{"", ""}: 0, {"ab", ""}: 2, {"ab", "ba"}: 1, {"kitten", "sitting"}: 3, {"png", "png"}: 0,
		{"äb", "bä"}: 1} {
		require.Equal(t, want, distance(pair[0], pair[1]), pair)
		require.Equal(t, want, distance(pair[1], pair[0]), pair)
	}
}
