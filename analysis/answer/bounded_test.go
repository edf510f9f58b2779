// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/leaks"
)

// TestBounded: a container with a bound explains a rise that was not judged if it has a good part of it and is not full.
func TestBounded(t *testing.T) {
	const holder = "main() local history[0..174]"
	rising := func() (*Answer, *Input) {
		a := &Answer{Leaks: &leaks.Report{Verdict: leaks.Unclear}, First: 10e6, Last: 50e6}
		a.Rows = []Row{{Bytes: 9e6}, {Holder: holder, Bytes: 30e6}}
		return a, &Input{Facts: map[string]advice.Facts{holder: {Length: 300, Most: 600, Each: 1000}}}
	}
	a, in := rising()
	require.Equal(t, &Bounded{Holder: holder, Length: 300, Most: 600, Full: 600_000}, a.boundedOf(in))
	a.Rows = append(a.Rows, Row{Holder: "main() local other[0..9]", Bytes: 1e6})
	in.Facts["main() local other[0..9]"] = advice.Facts{Length: 10, Most: 30, Each: 5}
	require.Equal(t, &Bounded{holder, 1, 310, 630, 600_150}, a.boundedOf(in))
	for name, change := range map[string]func(a *Answer, in *Input){
		"judged":      func(a *Answer, _ *Input) { a.Leaks.Verdict = leaks.Steady },
		"not rising":  func(a *Answer, _ *Input) { a.Last = a.First },
		"a small one": func(a *Answer, _ *Input) { a.Rows[1].Bytes = 10e6 },
		"full":        func(_ *Answer, in *Input) { in.Facts[holder] = advice.Facts{Length: 600, Most: 600, Each: 1000} },
		"a state": func(_ *Answer, in *Input) {
			in.Facts[holder] = advice.Facts{Length: 300, Most: 600, Each: 1000, State: true}
		},
		"no bound": func(_ *Answer, in *Input) { in.Facts[holder] = advice.Facts{Length: 300, Each: 1000} },
	} {
		a, in := rising()
		change(a, in)
		require.Nil(t, a.boundedOf(in), name)
	}
}
