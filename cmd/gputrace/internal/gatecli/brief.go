// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/export"
)

// Brief is gputrace report --brief: the verdict on a recording, or on the processes of a job. selected reports that a moment, a range or
// rows were chosen, of which there is no verdict.
func Brief(c *cli.Context, shared *Shared, selected bool) error {
	if selected {
		return usage("--brief is for a whole recording: give it without a moment, a range or --by")
	}
	paths, asJSON := recordingsOf(c.Args().Slice()), c.Bool("json")
	if len(paths) > 1 {
		return shared.ReadJob(c, func(o *export.OpenOptions) error { return export.WriteBriefOfJob(os.Stdout, paths, o, asJSON) })
	}
	return shared.Read(c, paths[0], func(in *export.Source, stop func()) error {
		if _, err := in.Answer(); err != nil {
			return err
		}
		stop()
		return in.WriteBrief(os.Stdout, asJSON)
	})
}
