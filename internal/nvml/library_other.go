// SPDX-License-Identifier: Apache-2.0

//go:build !linux || !cgo

package nvml

import "fmt"

// Built says whether this program can load NVML at all: it can on Linux, when it was built with cgo.
const Built = false

// load has nothing to load: the library is called through cgo, and there is one for Linux only.
func load(string) (backend, error) {
	return nil, fmt.Errorf("%w: this build of gputrace cannot load it (it was built without cgo, or not for Linux)", ErrNoLibrary)
}
