// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"fmt"
	"time"

	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/inspect"
)

// Category is what a block is used for. Numbers are never reused.
type Category uint8

// The categories. A block that fits several has the first of these that fits.
const (
	// CategoryUnknown: nothing is known of the holder, or nothing that held when it was read again; Block.Why says more.
	CategoryUnknown Category = 0
	// CategoryParameter: the tensor is in some module's _parameters, or is an nn.Parameter.
	CategoryParameter Category = 1
	// CategoryBuffer: the tensor is in some module's _buffers.
	CategoryBuffer Category = 2
	// CategoryGradient: the tensor is the .grad of another one.
	CategoryGradient Category = 3
	// CategoryOptimizer: the best path goes through the state of a torch.optim.Optimizer.
	CategoryOptimizer Category = 4
	// CategoryGraph: only the autograd graph keeps it (saved for backward), or the best path goes through it.
	CategoryGraph Category = 5
	// CategoryTensor: another tensor that the program can reach.
	CategoryTensor Category = 6
	// CategoryWorkspace: no tensor; a workspace of a library, named by Block.Class.
	CategoryWorkspace Category = 7
	// CategoryPending: given back by the program, and waiting for another stream's work.
	CategoryPending Category = 8
	// CategoryPool: no tensor; in the private pool of a CUDA graph or a torch.cuda.MemPool.
	CategoryPool Category = 9
	// CategoryGarbage: only Python objects that nothing reaches any more hold it; the cycle collector will free it.
	CategoryGarbage Category = 10
	// CategoryNative: only C++ holds the tensor; Block.Class says which class, where it is known.
	CategoryNative Category = 11
	// CategoryChanging: the block, or what holds it, changed while it was read; Block.Why says which.
	CategoryChanging Category = 12

	categories = 13
)

var categoryNames = [categories]string{
	"unknown", "parameters", "buffers", "gradients", "optimizer state", "kept by autograd graphs", "other tensors",
	"workspaces", "waiting for a stream", "private pools", "garbage waiting for the collector", "held by C++ only",
	"changing while it was read",
}

// String is what people call it, in the plural.
func (c Category) String() string {
	if int(c) < len(categoryNames) {
		return categoryNames[c]
	}
	return fmt.Sprintf("category(%d)", uint8(c))
}

// Categories lists all of them in the order in which they are shown: what is known first.
func Categories() []Category {
	return []Category{
		CategoryParameter, CategoryBuffer, CategoryGradient, CategoryOptimizer, CategoryGraph, CategoryTensor,
		CategoryWorkspace, CategoryPending, CategoryPool, CategoryGarbage, CategoryNative, CategoryChanging, CategoryUnknown,
	}
}

// Kind is what a tensor is to the program.
type Kind uint8

// The kinds of tensor. Numbers are never reused.
const (
	KindPlain     Kind = 0
	KindParameter Kind = 1 // in a module's _parameters, or an nn.Parameter
	KindBuffer    Kind = 2 // in a module's _buffers
	KindGradient  Kind = 3 // the .grad of another tensor
	KindOptimizer Kind = 4 // in the state of a torch.optim.Optimizer
)

var kindNames = []string{"tensor", "parameter", "buffer", "gradient", "optimizer state"}

// String is what people call it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind(%d)", uint8(k))
}

// Truth is an answer that may be missing.
type Truth int8

// The answers.
const (
	Unknown Truth = 0
	Yes     Truth = 1
	No      Truth = -1
)

// String is "yes", "no" or "unknown".
func (t Truth) String() string {
	switch t {
	case Yes:
		return "yes"
	case No:
		return "no"
	}
	return "unknown"
}

// Block is one live block of an allocator, and who holds it.
type Block struct {
	inspect.Block // address, size, requested bytes, stream, state
	Device        int
	Host          bool // the memory is the host's
	Allocator     allocator.Allocator
	Pool          inspect.Pool
	object        uint64 // what tensors have for its address: that of a MTLBuffer; 0: Addr
	Category      Category
	// Path leads to Tensors[0], or to the object that stands for the block. It is empty when no path is known.
	Path Path
	// Others are paths of further holders, up to Options.Others, the most readable first. They were read again like Path.
	Others []Path
	// Tensors use the block's storage; the one that Path leads to is the first. Empty when no tensor uses it.
	Tensors []Tensor
	// Holders is how many references to Tensors were found: containers, attributes, frames, graph nodes. Path's last step
	// is one of them.
	Holders int
	// Missing is how many references to Tensors the reference counts know that were not found. Only when it is 0 and
	// Complete is Yes are the Holders all there are.
	Missing int
	// Complete is Yes when the reference counts prove that all holders were found, No when Missing are not, Unknown when
	// the counts tell nothing: immortal objects, or a count that changed.
	Complete Truth
	// Confirmed: every link of Path, from the root to the block, was read again behind the walk and still held; in a
	// stopped process there is nothing to read again and it is true. A path that did not hold is not in the report.
	Confirmed bool
	// ByShape: Path was confirmed, link by link, but not proved in a burst of microseconds as the others were: there are too many of
	// its shape, or there was no time. Paths that differ from it only in numbers and keys were proved.
	ByShape bool
	// Age is how long before the end of the report Path was confirmed.
	Age time.Duration
	// Class says what the block is when no Python path leads to it: a C++ class ("c10d::Reducer"), a library's workspace
	// ("cuBLAS workspace"), the class of a garbage cycle. Empty when it is not known.
	Class string
	// Why says why Category is unknown, or why there is no Path. Empty when there is one.
	Why string
}

// Name is Path as text or, without one, Class or Why in angle brackets: never empty.
func (b *Block) Name() string {
	switch {
	case len(b.Path) > 0:
		return b.Path.String()
	case b.Class != "":
		return "<" + b.Class + ">"
	case b.Why != "":
		return "<unknown: " + b.Why + ">"
	}
	return "<" + b.Category.String() + ">"
}

// Tensor is one tensor that uses a block's storage, or one array in it.
type Tensor struct {
	Impl    uint64  // address of its TensorImpl; 0: it is an array
	Object  uint64  // address of its Python object, which is what id() gives; 0: it has none
	Class   string  // its Python type, as "Parameter" or "Tensor"; empty without an Object
	Shape   []int64 // elements; nil when the layout is not known
	Strides []int64 // elements
	Offset  int64   // where it begins in its storage, elements
	// DType is as in torch.dtype without "torch.": "float32", "bfloat16"; empty when it is not known.
	DType        string
	Storage      uint64 // address of its StorageImpl, of an array of the object that keeps the block
	RequiresGrad Truth
	Kind         Kind
	// Base: nothing leads to it but views of which it is the ._base.
	Base bool
}
