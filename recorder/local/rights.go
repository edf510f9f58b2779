// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// forResults are the capabilities with which root writes results into a folder of the user who called sudo, and passes
// their ownership to that user.
const forResults = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER

// dropTimeout is how long dropping capabilities in all threads may take. It takes less than a millisecond, unless a
// thread hangs in the GPU's driver.
const dropTimeout = 3 * time.Second

// dropRights drops the capabilities that are not needed once the probes are in place.
func (l *live) dropRights() {
	done := make(chan error, 1)
	also := uint64(forResults)
	if l.options.Forever {
		also = 1 << unix.CAP_PERFMON // another trace may follow in this process; nothing is written
	}
	go func() { done <- l.tracer.DropRights(also) }()
	select {
	case err := <-done:
		if err != nil {
			l.warn(err)
		}
	case <-time.After(dropTimeout):
		l.warn(fmt.Errorf("capabilities are still held: a thread does not answer for %v", dropTimeout))
	}
}
