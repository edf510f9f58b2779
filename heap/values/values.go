// SPDX-License-Identifier: Apache-2.0

// Package values keeps what a follower of a heap knows of each live block.
package values

import (
	"iter"

	"github.com/gputrace/gputrace/heap"
)

// PerBlock keeps a value of each live block of one heap, for a follower. Of the caching allocators' blocks, which are most, it is found by
// the block's number in the heap, without a hash. A value must be deleted when its block is freed, as the number is another block's then.
// The zero value is empty.
type PerBlock[T any] struct {
	torch  []perBlock[T]
	driver map[heap.BlockKey]*T
}

// perBlock is the value of the block with a number.
type perBlock[T any] struct {
	value T
	there bool
}

// At is the value of a block, valid until the next Set; nil: it has none.
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
		kept := v // or every v would be allocated, of torch blocks too
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

// All yields the values, of the caching allocators' blocks in the order of their numbers, of others in no order.
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
