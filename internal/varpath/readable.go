// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"regexp"
	"strings"
)

// Graph is the readable name of a graph of autograd that no variable was found to lead to.
const Graph = "an autograd graph"

// SelfKept begins the name of the node of a custom function that stays because its ctx leads back to it, as in
// "C++ self-kept ScaleBackward ctx.y".
const SelfKept = "C++ self-kept "

// Tee begins the name of what an iterator of itertools.tee() refers to: the list of elements that it has not read.
const Tee = ".<_tee+"

var (
	// graphNode is a node of a graph by its class, which differs from reading to reading: "C++ AddBackward0",
	// "<torch::autograd::generated::AddmmBackward0>".
	graphNode = regexp.MustCompile(`^(?:C\+\+ (?:self-kept )?|<)(?:\w+::)*(?:\w*Backward\w*|AccumulateGrad|CopySlices)(?:[^\w:].*)?$` +
		`|^<torch::autograd::`)
	// rooted is an attribute of an object of a Python class of which nothing is known that refers to it: "C++ Record.features".
	rooted = regexp.MustCompile(`^C\+\+ (\w+\.\w.*)$`)
)

// IsGraph reports whether a holder's name is a graph of autograd, by the class of one of its nodes.
func IsGraph(name string) bool {
	return graphNode.MatchString(name)
}

// HoldsGraph reports whether a variable leads to memory through its graph of autograd.
func HoldsGraph(name string) bool { return strings.Contains(name, graph) }

// Readable returns the name of a holder as people read it: a class in C++ that holds memory for autograd says nothing to them.
func Readable(name string) string {
	if node, ok := strings.CutPrefix(name, SelfKept); ok {
		return node
	}
	if IsGraph(name) {
		return Graph
	}
	if m := rooted.FindStringSubmatch(name); m != nil {
		return m[1]
	}
	if iterator, _, ok := strings.Cut(name, Tee); ok {
		return iterator + ".<tee>"
	}
	return name
}
