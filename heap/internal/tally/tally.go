// SPDX-License-Identifier: Apache-2.0

// Package tally adds up allocations and their bytes; some sizes may be unknown.
package tally

import "github.com/gputrace/gputrace/event"

// Count is a number of allocations and their bytes.
type Count struct {
	Objects uint64
	Bytes   uint64 // as the layer counts them: block sizes for torch
	Unsized uint64 // number of Objects whose size is unknown; Bytes does not include them
	// Requested is the bytes that the program asked for, for the RequestedObjects allocations for which that is known.
	Requested        uint64
	RequestedObjects uint64
}

// Add counts one allocation; both sizes may be event.Unknown.
func (c *Count) Add(bytes, requested uint64) {
	c.Objects++
	if bytes == event.Unknown {
		c.Unsized++
	} else {
		c.Bytes += bytes
	}
	if requested != event.Unknown {
		c.Requested += requested
		c.RequestedObjects++
	}
}

// Remove is the inverse of Add.
func (c *Count) Remove(bytes, requested uint64) {
	c.Objects--
	if bytes == event.Unknown {
		c.Unsized--
	} else {
		c.Bytes -= bytes
	}
	if requested != event.Unknown {
		c.Requested -= requested
		c.RequestedObjects--
	}
}

// Of returns the count of one allocation. Both sizes are bytes and may be event.Unknown.
func Of(size, requested uint64) Count {
	var c Count
	c.Add(size, requested)
	return c
}

// Plus returns the sum of both counts.
func (c Count) Plus(d Count) Count {
	return Count{
		Objects: c.Objects + d.Objects, Bytes: c.Bytes + d.Bytes, Unsized: c.Unsized + d.Unsized,
		Requested: c.Requested + d.Requested, RequestedObjects: c.RequestedObjects + d.RequestedObjects,
	}
}

// Minus returns the count without a part of it.
func (c Count) Minus(part Count) Count {
	return Count{
		Objects: c.Objects - part.Objects, Bytes: c.Bytes - part.Bytes, Unsized: c.Unsized - part.Unsized,
		Requested: c.Requested - part.Requested, RequestedObjects: c.RequestedObjects - part.RequestedObjects,
	}
}

// Contains reports whether another count can be a part of this one: none of its figures is larger.
func (c Count) Contains(part Count) bool {
	return part.Objects <= c.Objects && part.Bytes <= c.Bytes && part.Unsized <= c.Unsized &&
		part.Requested <= c.Requested && part.RequestedObjects <= c.RequestedObjects
}
