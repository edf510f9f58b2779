// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/agent"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/recorder/local"
)

func agentCommand() *cli.Command {
	return &cli.Command{
		Name:      "agent",
		Usage:     "trace every GPU process of this machine, and serve metrics and profiles",
		UsageText: "sudo gputrace agent [--config FILE]",
		Description: "Runs until it is stopped. Traces each process that uses a GPU within seconds, and serves its memory over HTTP on the " +
			"loopback address, or on the configured one: /metrics for Prometheus, /debug/pprof/gpu_heap for go tool pprof, " +
			"/api/v1/targets, and a page at /. docs/use/guides/fleet.md describes it.",
		Flags: []cli.Flag{
			flags.Text("config", "", "read the configuration from `FILE`, in YAML (default: all defaults)"),
			&cli.BoolFlag{Name: "check", Usage: "check the configuration and exit"},
		},
		Action: func(c *cli.Context) error {
			if err := refuseWords(c, c.Args().Slice()); err != nil {
				return err
			}
			config, err := agent.ReadConfig(flags.Get[string](c, "config"))
			if err != nil {
				return coded(exitInvalid, err)
			}
			if c.Bool("check") {
				return nil
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			a, err := agent.New(config, version, local.Open, slog.New(slog.NewTextHandler(os.Stderr, nil)))
			if err != nil {
				return err
			}
			go local.KeepSmall(ctx)
			return advice.Recording(a.Run(ctx))
		},
	}
}
