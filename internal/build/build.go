// SPDX-License-Identifier: Apache-2.0

// Package build says which gputrace this is: what the release, the commit and the Go toolchain made of it.
package build

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gputrace/gputrace/internal/nvml"
)

// Info is what identifies this program.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // of the source; empty: not known
	Modified bool   `json:"modified"` // the source was not quite that of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"` // "linux/amd64"
	NVML     bool   `json:"nvml"`     // it can ask the driver for what nvidia-smi shows

	// Date is the day of the version, YYYY-MM-DD.
	Date string `json:"-"`
}

// New identifies this program by what its release was given, each empty where there is none, else by what the Go toolchain wrote
// into it.
func New(release, date, commit string) Info {
	var info debug.BuildInfo
	if read, ok := debug.ReadBuildInfo(); ok {
		info = *read
	}
	out := Info{
		Commit: cmp.Or(commit, setting(info, "vcs.revision")), Modified: setting(info, "vcs.modified") == "true",
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, NVML: nvml.Built,
	}
	out.Version, out.Date = identify(release, date, info)
	return out
}

// String is the line of gputrace version.
func (i *Info) String() string {
	without := ""
	if runtime.GOOS == "linux" && !i.NVML {
		without = ", without NVML: built without cgo"
	}
	return fmt.Sprintf("gputrace %s (%s, %s%s)", i.Version, i.Go, i.Platform, without)
}

// identify returns the version of a build and its date: those that a release was given, else those of the commit that it was
// built from, without the v of its tag. A build that knows no commit (go test, a source tree without git) is "devel", of today.
func identify(release, date string, info debug.BuildInfo) (version, day string) {
	version, day = release, date
	if version == "" {
		version = strings.TrimPrefix(strings.Trim(info.Main.Version, "()"), "v")
	}
	if version == "" {
		version = "devel"
	}
	if commit := setting(info, "vcs.time"); day == "" && len(commit) >= len(time.DateOnly) {
		day = commit[:len(time.DateOnly)]
	}
	if day == "" {
		day = time.Now().UTC().Format(time.DateOnly)
	}
	return version, day
}

// setting returns the value of a build setting; empty where there is none.
func setting(info debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
