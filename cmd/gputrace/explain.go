// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/recorder"
)

// explain gives an error of a recording its exit code, and one of attaching the next step to take.
func explain(err error) error {
	var attach *recorder.AttachError
	var launch *recorder.LaunchError
	switch {
	case exit.Has(err):
		return err
	case errors.Is(err, recorder.ErrEndedEarly):
		return coded(exitTargetEnded, err)
	case errors.Is(err, recorder.ErrInterrupted):
		return coded(exitInterrupted, err)
	case errors.Is(err, recorder.ErrNoProcess):
		return coded(exitNothing, err)
	case errors.As(err, &launch):
		return coded(exitNotFound, err)
	case errors.As(err, &attach):
		return explainAttach(attach.Err, attach.PID)
	}
	return err
}
