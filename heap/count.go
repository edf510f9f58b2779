// SPDX-License-Identifier: Apache-2.0

package heap

// CountOf is the count of one allocation; both sizes are bytes and may be event.Unknown.
func CountOf(size, requested uint64) Count {
	var c Count
	c.add(size, requested)
	return c
}

// Plus is both counts together.
func (c Count) Plus(d Count) Count {
	return Count{
		Objects: c.Objects + d.Objects, Bytes: c.Bytes + d.Bytes, Unsized: c.Unsized + d.Unsized,
		Requested: c.Requested + d.Requested, RequestedObjects: c.RequestedObjects + d.RequestedObjects,
	}
}

// Minus is the rest of a count without a part of it.
func (c Count) Minus(part Count) Count {
	return Count{
		Objects: c.Objects - part.Objects, Bytes: c.Bytes - part.Bytes, Unsized: c.Unsized - part.Unsized,
		Requested: c.Requested - part.Requested, RequestedObjects: c.RequestedObjects - part.RequestedObjects,
	}
}

// Contains reports whether another count can be a part of this one: no figure of it is larger.
func (c Count) Contains(part Count) bool {
	return part.Objects <= c.Objects && part.Bytes <= c.Bytes && part.Unsized <= c.Unsized &&
		part.Requested <= c.Requested && part.RequestedObjects <= c.RequestedObjects
}
