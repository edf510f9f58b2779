// SPDX-License-Identifier: Apache-2.0

package answer

import (
	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event"
)

// Serving divides the memory of a server of language models by what it is for, bytes. Its fields add up to Answer.Total.
type Serving struct {
	Weights     int64
	Cache       int64 // keys and values of attention
	Activations int64 // with inputs and temporary memory
	Graphs      int64 // what was allocated while CUDA graphs were captured
	Outside     int64 // device memory of libraries, outside PyTorch, such as cuBLAS's and NCCL's
	Other       int64
}

// servingOf returns the division of rows that add up to the memory of a moment; nil: none of them is a cache of keys and values, the
// program trains a model, its weights are not known, or most of the memory is something else. Memory from before the attach, whose call
// is not known, is for what the newer memory of its holder is for.
func servingOf(rows []view.Row, report *leaks.Report) *Serving {
	if report != nil && (report.Steps.Source == steps.SourceOptimizer || report.Steps.Source == steps.SourceBackward) {
		return nil
	}
	var s Serving
	caches := map[string]int64{} // bytes by holder, less what is for something else
	for i := range rows {
		r := &rows[i]
		switch c := phases.Category(r.Category); {
		case c == phases.Gradients, c == phases.OptimizerState:
			return nil
		case c == phases.KVCache:
			caches[knownHolder(r.Holder)] += r.Bytes
		case r.Name != stacks.BeforeAttach:
			caches[knownHolder(r.Holder)] -= r.Bytes
		}
	}
	delete(caches, "")
	for i := range rows {
		r := &rows[i]
		part := &s.Other
		switch c := phases.Category(r.Category); {
		case r.Name == stacks.BeforeAttach && caches[r.Holder] > 0 && (c == phases.NoCategory || c == ""):
			part = &s.Cache
		case c == phases.Parameters:
			part = &s.Weights
		case c == phases.KVCache:
			part = &s.Cache
		case c == phases.Graphs:
			part = &s.Graphs
		case c == phases.Activations, c == phases.Inputs, c == phases.Temporary:
			part = &s.Activations
		case r.Layer == event.LayerDevice.String():
			part = &s.Outside
		}
		*part += r.Bytes
	}
	if known := s.Weights + s.Cache + s.Activations + s.Graphs + s.Outside; s.Cache == 0 || s.Weights == 0 || s.Other > known {
		return nil
	}
	return &s
}
