// SPDX-License-Identifier: Apache-2.0

package trailer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/recording"
)

func TestFreeMemory(t *testing.T) {
	unknown := figures.Bytes(event.Unknown)
	free := FreeOf(Driver(&recording.End{Memory: &recording.Memory{Driver: []figures.DriverUse{
		{Device: 0, Total: 100, All: 30}, {Device: 1, Total: unknown, All: 30}, {Device: -1, Total: 100, All: 30},
		{Device: 2, Total: 10, All: 30},
	}}}))
	require.Len(t, free, 3)
	require.EqualValues(t, 70, free[event.Device{Type: event.DeviceCUDA}])
	require.Empty(t, FreeOf(Driver(&recording.End{})))
	ended := &recording.End{Reason: recording.ReasonExited, Memory: &recording.Memory{Driver: []figures.DriverUse{{Total: 100}}}}
	require.Empty(t, FreeOf(Driver(ended)),
		"what is free without the program is not what was left to it")
}
