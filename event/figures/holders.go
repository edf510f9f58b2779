// SPDX-License-Identifier: Apache-2.0

package figures

// HolderFacts are facts about a holder that a holder scan found beside its name.
type HolderFacts struct {
	Cycle      string `json:"cycle,omitempty"`      // path from the garbage back to itself: "Node.parent.children[0]"
	Chain      int    `json:"chain,omitempty"`      // number of autograd nodes on the longest path from one tensor to a block
	Written    bool   `json:"written,omitempty"`    // the graph of a tensor begins with a write to a part of it (CopySlices)
	Links      int    `json:"links,omitempty"`      // number of objects of one class on a path that lead to each other, at most
	Link       string `json:"link,omitempty"`       // attribute by which most of these lead on, "parent", or on and back: "next/prev"
	Cache      bool   `json:"cache,omitempty"`      // the holder is an entry of functools.lru_cache
	Reset      string `json:"reset,omitempty"`      // path to an object whose class has update() and reset(): "task.quality"
	Weak       bool   `json:"weak,omitempty"`       // a weakref.WeakKeyDictionary leads to all blocks, by its values
	Hooks      int    `json:"hooks,omitempty"`      // largest number of hooks on one object of the path
	Threads    int    `json:"threads,omitempty"`    // number of threads of which a frame has the variable; 0: one at most
	Slice      bool   `json:"slice,omitempty"`      // the tensors of most of its blocks show less than half of them
	Length     uint64 `json:"length,omitempty"`     // elements of the containers with a bound that hold its blocks, which are alike
	Most       uint64 `json:"most,omitempty"`       // elements that these containers can hold; 0: there is no bound, or it is not known
	Containers int    `json:"containers,omitempty"` // number of these containers, if there are several
	Moved      bool   `json:"moved,omitempty"`      // Most or Each has grown since the first reading: they are others, or their elements grow
	Full       bool   `json:"full,omitempty"`       // all containers with a bound that lead to its blocks have reached it
	State      bool   `json:"state,omitempty"`      // these containers are the state of optimizers, Most the number of their parameters
	Was        uint64 `json:"was,omitempty"`        // Length at the first reading, if Most and Each were about the same; 0: not known
	Each       uint64 `json:"each,omitempty"`       // bytes of its blocks for an element of these containers, on average
	Queue      bool   `json:"queue,omitempty"`      // a queue.Queue or an asyncio.Queue, or a class alike, has them in its container
	Category   string `json:"category,omitempty"`   // purpose of the blocks
}

// IsBounded reports whether the containers have a bound. Parameters that are frozen never get state, and an optimizer can get more
// parameters: its state counts as bounded only if readings saw it grow while the number of parameters stayed the same.
func (f *HolderFacts) IsBounded() bool {
	return f.Most > 0 && (!f.State || f.Was > 0 && f.Length > f.Was && !f.Moved)
}
