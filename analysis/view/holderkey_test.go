// SPDX-License-Identifier: Apache-2.0

package view_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
)

func TestHolderKey(t *testing.T) {
	for name, want := range map[string]string{
		"":                                     "",
		"losses[0..24]":                        "losses[]",
		"losses[0]":                            "losses[]",
		"losses[*]":                            "losses[]",
		"d.attn[0..7][6 keys][0..49]":          "d.attn[][][]",
		"d.attn[0..7][1,204 keys][0..49]":      "d.attn[][][]",
		"net.heads['task1'..'task240'].weight": "net.heads[].weight",
		"model.lora_A['tenant*']":              "model.lora_A[]",
		"train.py:36 main() local history[0..10]['val'].grad_fn": "train.py:36 main() local history[]['val'].grad_fn",
		"model.layers.0.weight":                                  "model.layers.0.weight",
		"self.cache['a.b']":                                      "self.cache['a.b']",
		"train.py:8 main() local x":                              "train.py:8 main() local x",
		"opt.state[*]['exp_avg']":                                "opt.state[]['exp_avg']",
	} {
		require.Equal(t, want, view.HolderKey(name), name)
	}
}
