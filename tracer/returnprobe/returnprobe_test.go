// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package returnprobe

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuard: what was seen decides; without it the version, and what is not known counts as unsafe.
func TestGuard(t *testing.T) {
	version := func(major, minor, patch uint32) uint32 { return major<<16 | minor<<8 | patch }
	for name, c := range map[string]struct {
		guard Guard
		safe  bool
	}{
		"no filter":                        {Guard{kernel: version(6, 11, 0)}, true},
		"no filter, kernel unknown":        {Guard{}, true},
		"no filter, though others die":     {Guard{kernel: version(6, 12, 5), tried: Killed}, true},
		"before the system call":           {Guard{version(6, 10, 255), true, NotTried}, true},
		"first with it":                    {Guard{version(6, 11, 0), true, NotTried}, false},
		"6.12":                             {Guard{version(6, 12, 0), true, NotTried}, false},
		"6.12 that may have the exemption": {Guard{version(6, 12, 200), true, NotTried}, false},
		"6.13":                             {Guard{version(6, 13, 255), true, NotTried}, false},
		"first with the exemption":         {Guard{version(6, 14, 0), true, NotTried}, true},
		"7.3":                              {Guard{version(7, 3, 4), true, NotTried}, true},
		"kernel unknown":                   {Guard{0, true, NotTried}, false},
		"6.12 that was seen to exempt it":  {Guard{version(6, 12, 40), true, Survived}, true},
		"6.12 that was seen not to":        {Guard{version(6, 12, 5), true, Killed}, false},
		"old, but has it all the same":     {Guard{version(5, 14, 0), true, Killed}, false},
		"new, but has lost the exemption":  {Guard{version(7, 0, 0), true, Killed}, false},
	} {
		require.Equal(t, c.safe, c.guard.Safe(), name)
	}
}

// TestTryReturns: the kernel that the tests run on exempts it, or is older: else the tests of containers would kill them.
func TestTryReturns(t *testing.T) {
	tried, err := tryReturns()
	require.NoError(t, err)
	require.Equal(t, Survived, tried)
}

func TestCheckReturns(t *testing.T) {
	safe, says := Check(false)
	require.True(t, safe)
	require.Contains(t, says, "no seccomp filter")
	safe, says = check(true, func() (Trial, error) { return Killed, nil })
	require.False(t, safe)
	require.Contains(t, says, "killed")
	safe, _ = check(true, func() (Trial, error) { return Survived, nil })
	require.True(t, safe)
}
