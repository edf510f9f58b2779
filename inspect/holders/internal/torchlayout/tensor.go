// SPDX-License-Identifier: Apache-2.0

package torchlayout

// Geometry is a tensor's shape in its storage.
type Geometry struct {
	Sizes, Strides []int64 // elements
	Offset         int64   // elements
	DType          string  // as in torch.dtype, without "torch."
}

// Geometry reads a tensor's shape; ok is false where it is not known.
func (t *Reader) Geometry(impl uint64) (g Geometry, ok bool) {
	s, ok := t.geometry(&t.layout, impl)
	if !ok {
		return g, false
	}
	return Geometry{Sizes: s.sizes, Strides: s.strides, Offset: s.offset, DType: dtypes[s.dtype].name}, true
}

// RequiresGrad is whether a tensor requires a gradient: the result of a graph does, and a leaf whose flag says so. ok is false
// where it is not known.
func (t *Reader) RequiresGrad(impl uint64) (requires, ok bool) {
	if t.tensorMeta == 0 {
		return false, false
	}
	meta := t.im.Word(impl + t.tensorMeta)
	if meta == 0 {
		return false, true
	}
	if t.role(meta) != roleMeta || t.grad == 0 {
		return false, false
	}
	if t.role(t.im.Word(meta+t.gradFn)) == roleNode {
		return true, true
	}
	if t.requiresGrad == 0 {
		return false, false
	}
	b := t.im.View(meta+t.layout.requiresGrad, 1)
	if b == nil || b[0] > 1 {
		return false, false
	}
	return b[0] == 1, true
}
