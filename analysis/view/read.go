// SPDX-License-Identifier: Apache-2.0

package view

// Read is what was found to hold most blocks of each site when holders were last read. The zero value and nil are empty.
type Read struct {
	of    map[ReadKey]ReadHolder
	calls map[string]bool // sites of which the calls are known
}

// ReadKey identifies a site, or what it calls, in a scan.
type ReadKey struct{ site, call string }

// ReadHolder is what a scan found of a site.
type ReadHolder struct {
	Holder string // empty: none has most of it
	Bytes  uint64 // that have a holder
}

// Set sets what was found of a site or, if call is not empty, of what it calls: Site.Name and View.Call.
func (r *Read) Set(site, call string, h ReadHolder) {
	if r.of == nil {
		r.of, r.calls = map[ReadKey]ReadHolder{}, map[string]bool{}
	}
	r.of[ReadKey{site, call}] = h
	r.calls[site] = r.calls[site] || call != ""
}

// Key returns what identifies blocks of a site in the scan. A line such as "trainer.train()" allocates what different things hold: if the
// scan divided it by calls, what another call allocates is not in it.
func (r *Read) Key(site, call string) ReadKey {
	if r == nil || call == "" || !r.calls[site] {
		call = ""
	}
	return ReadKey{site, call}
}

// IsCall reports whether the key is of one call of a line.
func (k *ReadKey) IsCall() bool { return k.call != "" }

// Get returns what was found of blocks; zero: nothing.
func (r *Read) Get(key ReadKey) ReadHolder {
	if r == nil {
		return ReadHolder{}
	}
	return r.of[key]
}
