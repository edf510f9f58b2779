// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestKernelRelease(t *testing.T) {
	out, err := exec.Command("uname", "-r").Output()
	require.NoError(t, err)
	require.Equal(t, strings.TrimSpace(string(out)), KernelRelease())
}
