// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// readPage opens a page in Chromium, and gives what it shows: torch memory at the end, the peak, and all rows of its table, which
// begins at the peak. The job has nothing else on its device.
func readPage(t *testing.T, path string) (end, peak, rows int64) {
	t.Helper()
	text := pageText(t, path)
	tile := func(name string) int64 {
		m := regexp.MustCompile(`data-bytes="(\d+)" data-name="` + name + `"`).FindStringSubmatch(text)
		require.NotNil(t, m, name)
		return signed(t, m[1])
	}
	for _, m := range regexp.MustCompile(`data-bytes="(\d+)" data-measure="value"`).FindAllStringSubmatch(text, -1) {
		rows += signed(t, m[1])
	}
	return tile("live"), tile("peak"), rows
}

// pageText opens a page in Chromium, and returns the document that its script has drawn.
func pageText(t *testing.T, path string) string {
	t.Helper()
	program, err := exec.LookPath("chromium")
	if err != nil && os.Getenv("CI") != "true" {
		t.Skip("there is no chromium: .ci/install test")
	}
	require.NoError(t, err, ".ci/install test")
	// The time that is virtual goes on when there is nothing left to do.
	text, err := output(program, "--headless", "--no-sandbox", "--disable-gpu", "--user-data-dir="+filepath.Join(t.TempDir(), "profile"),
		"--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=20000", "--dump-dom", "file://"+path)
	require.NoError(t, err)
	require.Contains(t, text, `data-ready="true"`)
	return text
}
