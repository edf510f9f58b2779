// SPDX-License-Identifier: Apache-2.0

package screen

import "github.com/gputrace/gputrace/export/table"

// serving prints what the memory of a server of language models is for.
func (p *printer) serving() {
	s := p.a.Serving
	if s == nil {
		return
	}
	var parts []string
	outside := "outside PyTorch"
	if !p.a.Torch {
		outside = "libraries"
	}
	for _, x := range []struct {
		name  string
		bytes int64
	}{
		{"weights", s.Weights}, {"KV cache", s.Cache}, {"activations", s.Activations}, {"CUDA graphs", s.Graphs},
		{outside, s.Outside}, {"other", s.Other},
	} {
		parts = append(parts, x.name+" "+table.Bytes(uint64(max(0, x.bytes))))
	}
	p.list("  serving  ", parts)
}
