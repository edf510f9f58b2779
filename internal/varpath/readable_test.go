// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadable(t *testing.T) {
	for name, want := range map[string]string{
		"C++ AddBackward0":                             Graph,
		"C++ ThnnFusedGruCellBackward0":                Graph,
		"C++ AddBackward0 saved":                       Graph,
		"<torch::autograd::generated::AddmmBackward0>": Graph,
		"<torch::autograd::AccumulateGrad>":            Graph,
		"C++ Record.features":                          "Record.features",
		"C++ c10d::Reducer":                            "C++ c10d::Reducer",
		"C++ BackwardHooks::Table":                     "C++ BackwardHooks::Table",
		"<held by C++ only>":                           "<held by C++ only>",
		"model.ReluBackward0":                          "model.ReluBackward0",
		"total.grad_fn":                                "total.grad_fn",
		"":                                             "",
	} {
		require.Equal(t, want, Readable(name), name)
	}
	require.Equal(t, Graph, Fit("<torch::autograd::generated::AddmmBackward0>", 20))
}
