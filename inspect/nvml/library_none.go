//go:build !linux || !cgo

package nvml

import "fmt"

// load has nothing to load: the library is called through cgo, and there is one for Linux only.
func load(string) (backend, error) {
	return nil, fmt.Errorf("%w: this build of gputrace cannot load it (it needs Linux and cgo)", ErrNoLibrary)
}
