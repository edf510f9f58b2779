// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && frameworks

package e2e

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSleepOfVLLM is TestSleep with the extension by which vLLM's sleep mode allocates, of vLLM's wheel. It installs 1 GB:
//
//	go test -tags frameworks ./e2e -run TestSleepOfVLLM
func TestSleepOfVLLM(t *testing.T) {
	packages := filepath.Join(installed(t, "vllm==0.33.0", "--no-deps"), "vllm")
	_, screen := checkSleep(t, "cumem", []string{"PYTHONPATH=" + packages})
	require.Contains(t, screen, "stayed 14.0 MiB, then 86.0 MiB: at least 24.0 MiB more each time", "it gives back what is cached")
}
