// SPDX-License-Identifier: Apache-2.0

package figures

// HolderFacts are what a reading of holders found about a holder beside its name.
type HolderFacts struct {
	Cycle    string `json:"cycle,omitempty"`    // the way from garbage back to itself: "Node.parent.children[0]"
	Chain    int    `json:"chain,omitempty"`    // nodes of autograd on the longest way from one tensor to a block
	Cache    bool   `json:"cache,omitempty"`    // it is an entry of functools.lru_cache
	Reset    string `json:"reset,omitempty"`    // the way to an object whose class has update() and reset(): "task.quality"
	Hooks    int    `json:"hooks,omitempty"`    // the most hooks that one object on the way has
	Category string `json:"category,omitempty"` // what its blocks are for
}
