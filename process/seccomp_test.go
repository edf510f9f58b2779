// SPDX-License-Identifier: Apache-2.0

//go:build linux

package process

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFiltered: one thread with a filter is enough; without a line there are no filters.
func TestFiltered(t *testing.T) {
	for name, c := range map[string]struct {
		threads []string
		want    bool
		fails   bool
	}{
		"none":        {[]string{"Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"}, false, false},
		"no such":     {[]string{"Name:\tx\n"}, false, false},
		"filter":      {[]string{"Seccomp:\t2\n"}, true, false},
		"strict":      {[]string{"Seccomp:\t1\n"}, true, false},
		"one of many": {[]string{"Seccomp:\t0\n", "Seccomp:\t0\n", "Seccomp:\t2\n"}, true, false},
		"no threads":  {nil, false, true},
		"nonsense":    {[]string{"Seccomp:\tmany\n"}, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(root, "task"), 0o755))
			for i, status := range c.threads {
				dir := filepath.Join(root, "task", string(rune('1'+i)))
				require.NoError(t, os.Mkdir(dir, 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(dir, "status"), []byte(status), 0o644))
			}
			got, err := (&Process{PID: 1, root: root}).Filtered()
			require.Equal(t, c.fails, err != nil, "%v", err)
			require.Equal(t, c.want, got)
		})
	}
}
