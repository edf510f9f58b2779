// SPDX-License-Identifier: Apache-2.0

//go:build !linux || (!amd64 && !arm64)

package gatecli

import (
	"fmt"
	"runtime"

	"github.com/gputrace/gputrace/event/figures"
)

// readStats is of Linux on x86-64 and arm64 for now.
func readStats(int) ([]figures.MemoryStats, error) {
	return nil, fmt.Errorf("reading another process is not yet possible on %s/%s", runtime.GOOS, runtime.GOARCH)
}
