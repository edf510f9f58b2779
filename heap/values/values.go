// SPDX-License-Identifier: Apache-2.0

// Package values stores a value for each live block, for followers of a heap.
package values

import (
	"iter"

	"github.com/gputrace/gputrace/heap"
)

// PerBlock stores a value for each live block of one heap, for a follower. It finds the value of a caching allocator's
// block, the common case, by the block's number, without a hash. Delete a value when its block is freed, because
// another block then gets the number. The zero value is empty and ready for use.
type PerBlock[T any] struct {
	torch  []perBlock[T]
	driver map[heap.BlockKey]*T
}

// perBlock is the value of one numbered block.
type perBlock[T any] struct {
	value T
	there bool
}

// At returns the value of a block, valid until the next Set, or nil if it has none.
func (p *PerBlock[T]) At(b *heap.Block) *T {
	if b.Number == 0 {
		return p.driver[b.Key()]
	}
	if int(b.Number) < len(p.torch) && p.torch[b.Number].there {
		return &p.torch[b.Number].value
	}
	return nil
}

// Set makes v the value of a block.
func (p *PerBlock[T]) Set(b *heap.Block, v T) {
	if b.Number == 0 {
		if p.driver == nil {
			p.driver = map[heap.BlockKey]*T{}
		}
		kept := v // taking the address of v itself would allocate it for torch blocks too
		p.driver[b.Key()] = &kept
		return
	}
	if n := int(b.Number) + 1; n > len(p.torch) {
		p.torch = append(p.torch, make([]perBlock[T], n-len(p.torch))...)
	}
	p.torch[b.Number] = perBlock[T]{v, true}
}

// Delete removes the value of a block, if it has one.
func (p *PerBlock[T]) Delete(b *heap.Block) {
	if b.Number == 0 {
		delete(p.driver, b.Key())
	} else if int(b.Number) < len(p.torch) {
		p.torch[b.Number] = perBlock[T]{}
	}
}

// All yields the values: those of the caching allocators' blocks in the order of their numbers, the others in no order.
func (p *PerBlock[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for i := range p.torch {
			if p.torch[i].there && !yield(&p.torch[i].value) {
				return
			}
		}
		for _, v := range p.driver {
			if !yield(v) {
				return
			}
		}
	}
}
