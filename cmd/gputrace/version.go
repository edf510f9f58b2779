// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/nvml"
)

// release, releaseDate (YYYY-MM-DD) and releaseCommit are set by the linker where a release is built; see "make release".
var release, releaseDate, releaseCommit string

// version is printed by --version and at every attach, and is in every recording. versionDate is the date of the manual page.
var version, versionDate = identify(release, releaseDate, readBuild())

// readBuild returns what the Go toolchain wrote into this program; nothing where it wrote nothing.
func readBuild() debug.BuildInfo {
	if info, ok := debug.ReadBuildInfo(); ok {
		return *info
	}
	return debug.BuildInfo{}
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

// build is what identifies this program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // of the source; empty: not known
	Modified bool   `json:"modified"` // the source was not quite that of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"` // "linux/amd64"
	NVML     bool   `json:"nvml"`     // it can ask the driver for what nvidia-smi shows
}

func thisBuild() build {
	info := readBuild()
	return build{
		Version: version, Commit: cmp.Or(releaseCommit, setting(info, "vcs.revision")), Modified: setting(info, "vcs.modified") == "true",
		Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, NVML: nvml.Built,
	}
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:      "version",
		Usage:     "show the version",
		UsageText: "gputrace version [--json]",
		Flags:     []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "write JSON"}},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return usage("unknown argument %q; see gputrace version --help", c.Args().First())
			}
			b := thisBuild()
			if c.Bool("json") {
				e := json.NewEncoder(c.App.Writer)
				e.SetIndent("", "  ")
				return e.Encode(b)
			}
			without := ""
			if runtime.GOOS == "linux" && !b.NVML {
				without = ", without NVML: built without cgo"
			}
			_, err := fmt.Fprintf(c.App.Writer, "gputrace %s (%s, %s%s)\n", b.Version, b.Go, b.Platform, without)
			return err
		},
	}
}
