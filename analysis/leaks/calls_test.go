// SPDX-License-Identifier: Apache-2.0

package leaks_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestCalls: a line that calls a library's modules is followed by what of it grows where.
func TestCalls(t *testing.T) {
	const site = " /v/lib/python3.11/site-packages/transformers/gpt2.py:"
	const run = " /home/a/train.py:30:main"
	r := train(func(j *job, _ int) {
		j.Alloc(eventtest.Report+" "+eventtest.Library+site+"312:MLP.forward"+site+"400:Trainer.train"+run, 3000)
		j.Alloc(eventtest.Report+site+"312:MLP.forward"+site+"400:Trainer.train"+run, 1000)
		j.Alloc(eventtest.Report+site+"320:Attention.forward"+site+"400:Trainer.train"+run, 2000)
	}).find(t, nil)
	require.Len(t, r.Findings, 1)
	require.Equal(t, "train.py:30 main", r.Findings[0].Name())
	var got []string
	for _, c := range r.Findings[0].Calls {
		got = append(got, c.Name())
	}
	require.Equal(t, []string{"gpt2.py:312 MLP.forward", "gpt2.py:320 Attention.forward"}, got)
	require.Equal(t, leaks.Call{
		File: "/v/lib/python3.11/site-packages/transformers/gpt2.py", Line: 312, Function: "MLP.forward", Blocks: 2, Requested: 4000,
		Bytes: 3072 + 1024,
	}, r.Findings[0].Calls[0])
	require.Empty(t, train(func(j *job, _ int) { j.Alloc(kept, 1000) }).find(t, nil).Findings[0].Calls, "its own line allocates")
}
