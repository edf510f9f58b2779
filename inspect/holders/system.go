// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"context"
	"github.com/gputrace/gputrace/inspect/holders/internal/stop"
	"time"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/memory"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/process"
)

// system is what a reading asks of a process, and of the system that it runs on.
type system interface {
	process.Memory
	// Maps lists what is mapped, sorted by address.
	Maps() ([]process.Mapping, error)
	// Environ is the environment that the process began with.
	Environ() ([]string, error)
	// present lists the pages of the heap regions that are there. notes say what was left out.
	present(regions []memory.Region) (runs []memory.Run, notes []string, err error)
	// interpreter finds Python, which is still to be proved.
	interpreter() (*pyobject.Heap, error)
	// live reads the live blocks; mapTimeout is how long a quiet moment is waited for.
	live(ctx context.Context, mapTimeout time.Duration) (*liveBlocks, error)
	// threadIDs are the threads of the process, as itself numbers them; nil: they are not known.
	threadIDs() map[uint64]bool
	// asleep looks at its threads; nil: it is not known.
	asleep() stop.Asleep
	abi() torchlayout.ABI
	// clock is the time by the clock of the blocks; 0: it is not known.
	clock() uint64
	// freeze is copy of a process that Options.Freeze lets be stopped.
	freeze(r *reading) (*liveBlocks, error)
}
