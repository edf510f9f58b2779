// SPDX-License-Identifier: Apache-2.0

package elfimage

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// OnFault guards an exported entry point against a file that was truncated while it was mapped: touching a page behind
// the new end raises SIGBUS, which would end the program. It turns that one panic into a call of failed; any other panic
// goes on.
//
//	defer OnFault(func(e error) { err = e })()
func OnFault(failed func(error)) func() {
	old := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(old)
		switch p := recover().(type) {
		case nil:
		case faultError:
			failed(fmt.Errorf("file changed while in use: %w", p))
		default:
			panic(p)
		}
	}
}

// faultError is what the runtime panics with for a bad address (runtime/debug.SetPanicOnFault).
type faultError interface {
	runtime.Error
	Addr() uintptr
}
