// SPDX-License-Identifier: Apache-2.0

// Package darwin will be the live source on macOS: a shim library that is loaded into a job when it is started, and dtrace
// for a job that already runs. Neither exists yet. What reads recordings and writes profiles builds on macOS today.
package darwin

import "errors"

// ErrNotYet is how every attempt to attach on macOS ends.
var ErrNotYet = errors.New("attaching on macOS is not yet possible: run gputrace on Linux")
