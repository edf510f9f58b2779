// SPDX-License-Identifier: Apache-2.0

package top

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFilter(t *testing.T) {
	peak, growth := int64(3<<30), 4096.0
	row := &Row{
		Name: "model.py:41", File: "/home/a/model.py", Function: "Net.forward", Source: "x = self.mlp(x)", Bytes: 1 << 30, Blocks: 7, Peak: &peak,
		PerStep: &growth, Holder: "losses[*]",
	}
	for query, want := range map[string]bool{
		"":                                   true,
		"net.FORWARD":                        true,
		"adam":                               false,
		"!adam":                              true,
		"live>1g":                            false,
		"live>1023m":                         true,
		"live=1GiB":                          true,
		"live<1.5g and blocks>6":             true,
		"live<1.5g and blocks>7":             false,
		"!live<1.5g and blocks>7":            true,
		"file~model\\.py$ and growth>0":      true,
		"file=model.py":                      false,
		"name=model.py:41":                   true,
		"peak > 2 g":                         true,
		"holder~^losses":                     true,
		"category~parameter":                 false,
		"function~^Net and source~mlp and x": true,
		"function~^Net and source~mlp and gpt.py": false,
	} {
		f, err := ParseFilter(query)
		require.NoError(t, err, query)
		require.Equal(t, want, f.Shows(row), query)
	}
	for _, query := range []string{"live>big", "live~1", "colour=red", "name>3", "name~(", "live>"} {
		_, err := ParseFilter(query)
		if query == "live>" {
			require.NoError(t, err, "a word like any other")
			continue
		}
		require.Error(t, err, query)
	}
	f, err := ParseFilter("peak>0")
	require.NoError(t, err)
	require.False(t, f.Shows(&Row{Bytes: 5}), "what is not known is not above 0")
}
