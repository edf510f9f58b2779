// SPDX-License-Identifier: Apache-2.0

package objgraph

import "github.com/gputrace/gputrace/cpython/pyobject"

// node is an object and the best path to it: what is asked for together lies together, 32 bytes.
type node struct {
	addr   uint64
	aux    uint64 // of the path's last step, see Link
	dist   int32  // cost of the path; noDist: there is none
	parent uint32 // number of the object before it on the path; noParent: it is a root
	kind   pyobject.RefKind
}

// chunkShift is the logarithm of how many nodes are in a chunk, 512 KiB.
const chunkShift = 14

// nodes are numbered from 0 on. They stay where they are when more are added.
type nodes struct {
	chunks [][]node
	count  int
}

// add returns the number of a new node.
func (s *nodes) add(o node) uint32 {
	n := uint32(s.count)
	if int(n>>chunkShift) == len(s.chunks) {
		s.chunks = append(s.chunks, make([]node, 1<<chunkShift))
	}
	s.count++
	*s.at(n) = o
	return n
}

// at is a node by its number.
func (s *nodes) at(n uint32) *node { return &s.chunks[n>>chunkShift][n&(1<<chunkShift-1)] }
