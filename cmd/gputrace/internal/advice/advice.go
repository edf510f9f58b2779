// SPDX-License-Identifier: Apache-2.0

// Package advice says to each error what its exit code is, and what to type next.
package advice

import (
	"errors"

	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recorder"
)

// Recording adds the exit code to an error of a recording, and to one of attaching the next step to take. An error that has a code is
// left as it is.
func Recording(err error) error {
	var attach *recorder.AttachError
	var launch *recorder.LaunchError
	switch {
	case exit.Has(err):
		return err
	case errors.Is(err, recorder.ErrEndedEarly):
		return exit.With(exit.TargetEnded, err)
	case errors.Is(err, recorder.ErrInterrupted):
		return exit.With(exit.Interrupted, err)
	case errors.Is(err, recorder.ErrNoProcess):
		return exit.With(exit.Nothing, err)
	case errors.As(err, &launch):
		return exit.With(exit.NotFound, err)
	case errors.As(err, &attach):
		return explainAttach(attach.Err, attach.PID)
	}
	return err
}
