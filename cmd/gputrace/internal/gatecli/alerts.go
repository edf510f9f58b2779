// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/alerts"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/notify"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
)

// alertOptions are thresholds, and where alerts go beside standard error.
type alertOptions struct {
	rules              []alerts.Rule
	every              time.Duration
	log, exec, webhook string
}

func alertFlags() []cli.Flag {
	return []cli.Flag{
		flags.Alerts("alert", "print an alert when `RULE` holds, with the lines that hold the most: "+alerts.Usage),
		flags.Duration("alert-every", "repeat an alert for the same rule and device after `TIME` at the earliest (default: 1m)", time.Second, 0),
		flags.Text("alert-log", "", "append alerts to `FILE`, as lines of JSON"),
		flags.Text("alert-exec", "", "run shell `COMMAND` at each alert, with the JSON as its input and the text in GPUTRACE_ALERT"),
		flags.Text("alert-webhook", "", "send each alert to `URL`, as JSON"),
	}
}

func parseAlerts(c *cli.Context) (alertOptions, error) {
	o := alertOptions{
		rules: flags.Get[[]alerts.Rule](c, "alert"), every: flags.Get[time.Duration](c, "alert-every"),
		log: flags.Get[string](c, "alert-log"), exec: flags.Get[string](c, "alert-exec"), webhook: flags.Get[string](c, "alert-webhook"),
	}
	if !c.IsSet("alert-every") {
		o.every = time.Minute
	}
	if len(o.rules) == 0 && (o.log != "" || o.exec != "" || o.webhook != "" || c.IsSet("alert-every")) {
		return o, usage("which alerts? give --alert too")
	}
	if u, err := url.Parse(o.webhook); o.webhook != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		return o, usage("--alert-webhook %s: not an address, such as https://example.com/hook", o.webhook)
	}
	return o, nil
}

// start has the recorder watch for alerts. stop delivers what is left.
func (o *alertOptions) start(r *recorder.Options) (stop func() error, err error) {
	stop = func() error { return nil }
	if r.Alerts, r.AlertEvery = o.rules, o.every; len(o.rules) == 0 {
		return stop, nil
	}
	var log io.WriteCloser
	if o.log != "" {
		if log, err = os.OpenFile(o.log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644); err != nil {
			return nil, fmt.Errorf("--alert-log: %w", err)
		}
		if err := output.GiveToUser(o.log); err != nil {
			return nil, err
		}
	}
	options := notify.Options{Command: o.exec, Webhook: o.webhook}
	if log != nil {
		options.Log = log
	}
	n := notify.New(options)
	r.Alert = func(a *alerts.Alert) error {
		body, text, err := export.Alert(a)
		return errors.Join(err, n.Send(body, text))
	}
	return func() error {
		err := n.Close()
		if log != nil {
			err = errors.Join(err, log.Close())
		}
		return err
	}, nil
}

// Recording is what the command line asks for of a recording, beside it.
type Recording struct {
	alerts alertOptions
	check  *checkOptions // nil: nothing is checked
}

// RecordingFlags are --check with its rules, and --alert, of the commands that record.
func RecordingFlags() []cli.Flag {
	check := &cli.BoolFlag{Name: "check", Usage: "check the recording when it ends, as gputrace check does; the exit code is 4 when a rule " +
		"is not met"}
	return append(append([]cli.Flag{check}, gateFlags()...), alertFlags()...)
}

// ParseRecording reads RecordingFlags; nil: nothing is asked for. version is that of gputrace.
func ParseRecording(c *cli.Context, version string) (*Recording, error) {
	alerts, err := parseAlerts(c)
	if err != nil {
		return nil, err
	}
	check, err := parseCheck(c, version)
	switch {
	case err != nil:
		return nil, err
	case c.Bool("check") && !check.in.Rules.Any():
		return nil, usage("--check: which rules? give --max-peak, --no-leaks or others")
	case !c.Bool("check") && (check.in.Rules.Any() || check.junit != ""):
		return nil, usage("the rules of a check need --check")
	case !c.Bool("check"):
		check = nil
	default:
		check.stepOn, check.asJSON = flags.Get[string](c, "step-on"), c.Bool("json")
	}
	if len(alerts.rules) == 0 && check == nil {
		return nil, nil
	}
	return &Recording{alerts, check}, nil
}

// Start has a recorder watch for alerts. stop delivers what is left. nil asks for nothing.
func (r *Recording) Start(o *recorder.Options) (stop func() error, err error) {
	if r == nil {
		return func() error { return nil }, nil
	}
	return r.alerts.start(o)
}

// Checks reports whether After prints the outcome of a check.
func (r *Recording) Checks() bool { return r != nil && r.check != nil }

// After checks what was recorded, when that is asked for, and prints the outcome. err is that of the recording.
func (r *Recording) After(from *recorder.Recorder, results *folder.Results, out io.Writer, err error) error {
	if !r.Checks() {
		return err
	}
	return r.check.afterRecording(from, results, out, err)
}
