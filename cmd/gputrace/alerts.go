// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/alerts"
	"github.com/gputrace/gputrace/export"
	flags "github.com/gputrace/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/notify"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
)

// alertOptions are thresholds, and where alerts go beside standard error.
type alertOptions struct {
	rules              []alerts.Rule
	every              time.Duration
	log, exec, webhook string
}

func alertFlags() []cli.Flag {
	return []cli.Flag{
		flags.Alerts("alert", "print an alert when `RULE` holds, with the lines that have the most: "+alerts.Usage),
		flags.Duration("alert-every", "repeat an alert of one rule and device after `TIME` at the soonest (default: 1m)", time.Second, 0),
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
