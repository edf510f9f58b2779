//go:build amd64

package main

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/tracer"
)

// forResults are the capabilities with which root writes results into a folder of the user who called sudo, and gives them to
// that user.
const forResults = 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_OVERRIDE | 1<<unix.CAP_FOWNER

// dropPatience is how long the threads of the program may take to give up their capabilities. It takes less than a millisecond, but
// for a thread that hangs in the GPU's driver.
const dropPatience = 3 * time.Second

// dropRights gives up what is not needed once the probes are in place.
func dropRights(t *tracer.Session, sc *screen) {
	done := make(chan error, 1)
	go func() { done <- t.DropRights(forResults) }()
	select {
	case err := <-done:
		if err != nil {
			sc.warn(err)
		}
	case <-time.After(dropPatience):
		sc.warn(fmt.Errorf("capabilities are still held: a thread does not answer for %v", dropPatience))
	}
}
