package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// build is what identifies this program.
type build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit"`   // of the source; empty: not known
	Modified bool   `json:"modified"` // the source was not quite that of the commit
	Go       string `json:"go"`
	Platform string `json:"platform"` // "linux/amd64"
}

func thisBuild() build {
	b := build{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
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
			_, err := fmt.Fprintf(c.App.Writer, "gputrace %s (%s, %s)\n", b.Version, b.Go, b.Platform)
			return err
		},
	}
}
