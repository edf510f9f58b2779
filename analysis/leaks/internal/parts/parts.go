// SPDX-License-Identifier: Apache-2.0

// Package parts divides what one call stack allocates among several containers that keep it, by the number of blocks in each.
package parts

import (
	"maps"
	"math"
	"slices"

	"github.com/gputrace/gputrace/internal/varpath"
)

// Container is the blocks that a container was found to hold.
type Container struct{ Blocks, Bytes uint64 }

// Sum adds up the known blocks of one stack and size class by the container that holds them.
type Sum struct {
	Least  uint64  // number of known blocks of a container that are enough for it to have all
	Common float64 // the share of the known bytes that it must hold then
	bytes  uint64
	roots  map[string]Container
}

// Add adds blocks by the name of their holder. A graph's blocks belong to every tensor that leads to them, and the blocks of a traceback
// to every variable of its frames: neither has a container.
func (s *Sum) Add(name string, c Container) {
	s.bytes += c.Bytes
	root := varpath.Root(name)
	if _, raised := varpath.Raised(name); raised || root == name || varpath.HoldsGraph(name) {
		return
	}
	if s.roots == nil {
		s.roots = map[string]Container{}
	}
	sum := s.roots[root]
	s.roots[root] = Container{sum.Blocks + c.Blocks, sum.Bytes + c.Bytes}
}

// Share is what one container takes: Blocks of each Group of blocks, which comes every Periods periods of the stack.
type Share struct {
	Root                   string // the container, as varpath.Root
	Blocks, Group, Periods int
}

// Share is the part of the stack's blocks, 0 to 1.
func (s *Share) Share() float64 { return float64(s.Blocks) / float64(s.Group) }

// Shares returns the containers, with the number of blocks that each takes, of a stack that allocates group blocks in a period. One stack
// can fill several containers: a loop over two lists. nil: they are not known.
func (s *Sum) Shares(group int) (out []Share) {
	if s == nil {
		return nil
	}
	roots := slices.Sorted(maps.Keys(s.roots))
	var of []Container
	known := uint64(0)
	for _, root := range roots {
		c := s.roots[root]
		if c.Blocks >= s.Least && float64(c.Bytes) >= s.Common*float64(s.bytes) {
			return []Share{{root, 1, 1, 1}}
		}
		of = append(of, c)
		known += c.Bytes
	}
	if known < s.bytes {
		return nil
	}
	blocks, periods := divide(of, group)
	for i, n := range blocks {
		out = append(out, Share{roots[i], n, group * periods, periods})
	}
	return out
}

const (
	// mostPeriods is the maximum number of periods in which the containers take whole numbers of blocks.
	mostPeriods = 12
	// uneven is how many blocks a container may have more or less than its share, because the loop is at some place of its period, and
	// sharpness how many times smaller that must be than what one block of a period amounts to.
	uneven    = 1.5
	sharpness = 8
	// evenSizes is the maximum difference of the mean sizes of the containers' blocks, as a share.
	evenSizes = 0.001
)

// divide returns how many blocks each container takes in some periods, of a stack that allocates group blocks in one. periods is 0 if
// they take no whole numbers of blocks in a few periods, or if their blocks differ in size.
func divide(of []Container, group int) (blocks []int, periods int) {
	var all Container
	for _, c := range of {
		all.Blocks, all.Bytes = all.Blocks+c.Blocks, all.Bytes+c.Bytes
	}
	for n := 1; group > 0 && n <= mostPeriods && sharpness*uneven*float64(n*group) <= float64(all.Blocks); n++ {
		if blocks, ok := inGroups(of, &all, group*n); ok {
			return blocks, n
		}
	}
	return nil, 0
}

// inGroups divides groups of blocks into whole numbers of blocks by container.
func inGroups(of []Container, all *Container, group int) (blocks []int, ok bool) {
	mean, groups := float64(all.Bytes)/float64(all.Blocks), float64(all.Blocks)/float64(group)
	left := group
	for _, c := range of {
		n := math.Round(float64(c.Blocks) / groups)
		if n < 1 || math.Abs(float64(c.Blocks)-n*groups) > uneven || math.Abs(float64(c.Bytes)/float64(c.Blocks)-mean) > evenSizes*mean {
			return nil, false
		}
		blocks, left = append(blocks, int(n)), left-int(n)
	}
	return blocks, left == 0
}
