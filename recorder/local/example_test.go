// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package local_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/local"
)

// quiet is a recorder.Observer that prints each process that ends.
type quiet struct{}

func (quiet) Event(recorder.Event)       {}
func (quiet) Notice(string)              {}
func (quiet) Warning(err error)          { log.Print(err) }
func (quiet) Attached(*recorder.Process) {}
func (quiet) Ready() error               { return nil }
func (quiet) Live(*recorder.State)       {}
func (quiet) Holders(*view.Joined)       {}
func (quiet) Ended(p *recorder.Process) {
	fmt.Println(p.Who(), "has ended with", p.View().Total(), "bytes")
}

// Record every process of this machine that uses CUDA, those that begin later too, and print the lines with the most live
// memory of each every ten seconds.
func Example() {
	options := &recorder.Options{All: true, Forever: true, HoldersOnRequest: true, MaxStacks: 1 << 16, Memory: "auto", Observer: quiet{}}
	source, err := local.Open(options)
	if err != nil {
		log.Fatal(err)
	}
	r := recorder.New(source, options)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	go func() {
		for ctx.Err() == nil {
			time.Sleep(10 * time.Second)
			state, err := r.State(ctx)
			if err != nil {
				return
			}
			for i := range state.Processes {
				if m, err := r.Moment(ctx, state.Processes[i].Process); err == nil {
					for _, line := range m.View().ByPython(5).Rows {
						fmt.Println(m.Process.Who(), line.Bytes, line.Name)
					}
				}
			}
		}
	}()
	if _, err := r.Run(ctx); err != nil {
		log.Print(err)
	}
	if err := r.Close(); err != nil {
		log.Print(err)
	}
}
