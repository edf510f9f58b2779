// SPDX-License-Identifier: Apache-2.0

// Package holders groups what holds the blocks of a process's caching allocator, by variable, module, dtype, shape or category,
// and joins it with the live set of a recording.
package holders

// Grouping says what the blocks of one row have in common.
type Grouping uint8

// The groupings, in the order of GroupingNames.
const (
	ByOwner    Grouping = iota // the same path but for indices: "kept[0..11]"
	ByModule                   // the same nn.Module: its parameters, buffers, gradients and optimizer state
	ByDType                    // the dtype of the tensor that the path leads to
	ByShape                    // its shape and dtype
	ByCategory                 // who.Category
)

// GroupingNames are what the groupings are called on the command line, by their number.
var GroupingNames = []string{"owner", "module", "dtype", "shape", "category"}
