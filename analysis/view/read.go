// SPDX-License-Identifier: Apache-2.0

package view

// Read is what was found to hold most blocks of each site when holders were last read. The zero value and nil are empty.
type Read struct {
	of    map[SiteCall]ReadHolder
	calls map[string]bool // sites of which the calls are known
}

// SiteCall is a site, and what it calls: Site.Name and View.Call. Call is empty if it allocates itself, or if all its calls are meant.
type SiteCall struct{ Site, Call string }

// ReadHolder is what a scan found of a site.
type ReadHolder struct {
	Holder string // empty: none has most of it
	Bytes  uint64 // that have a holder
}

// Set sets what was found of a site or of one of its calls.
func (r *Read) Set(key SiteCall, h ReadHolder) {
	if r.of == nil {
		r.of, r.calls = map[SiteCall]ReadHolder{}, map[string]bool{}
	}
	r.of[key] = h
	r.calls[key.Site] = r.calls[key.Site] || key.Call != ""
}

// Key returns what identifies blocks of a site in the scan. A line such as "trainer.train()" allocates what different things hold: if the
// scan divided it by calls, what another call allocates is not in it.
func (r *Read) Key(of SiteCall) SiteCall {
	if r == nil || !r.calls[of.Site] {
		of.Call = ""
	}
	return of
}

// Get returns what was found of blocks; zero: nothing.
func (r *Read) Get(key SiteCall) ReadHolder {
	if r == nil {
		return ReadHolder{}
	}
	return r.of[key]
}
