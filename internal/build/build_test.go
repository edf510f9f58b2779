// SPDX-License-Identifier: Apache-2.0

package build

import (
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestIdentify: the version is the release's, else the commit's.
func TestIdentify(t *testing.T) {
	today := time.Now().UTC().Format(time.DateOnly)
	commit := debug.BuildInfo{
		Main:     debug.Module{Version: "v0.0.0-20261123053829-56f6811abcde+dirty"},
		Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "2026-11-23T05:38:29Z"}},
	}
	tests := map[string]struct {
		release, date string
		info          debug.BuildInfo
		version, day  string
	}{
		"release":        {"1.2.3", "2026-12-01", commit, "1.2.3", "2026-12-01"},
		"commit":         {"", "", commit, "0.0.0-20261123053829-56f6811abcde+dirty", "2026-11-23"},
		"tag":            {"", "", debug.BuildInfo{Main: debug.Module{Version: "v0.2.0"}}, "0.2.0", today},
		"go test":        {"", "", debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "devel", today},
		"nothing":        {"", "", debug.BuildInfo{}, "devel", today},
		"time too short": {"", "", debug.BuildInfo{Settings: []debug.BuildSetting{{Key: "vcs.time", Value: "2026"}}}, "devel", today},
	}
	for name, test := range tests {
		version, day := identify(test.release, test.date, test.info)
		require.Equal(t, [2]string{test.version, test.day}, [2]string{version, day}, name)
	}
}
