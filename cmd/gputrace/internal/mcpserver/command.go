// SPDX-License-Identifier: Apache-2.0

// Package mcpserver answers the questions of a coding agent over the Model Context Protocol. It computes nothing: each answer is a part of
// what gputrace itself prints with --json, small enough for the context of a language model.
package mcpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/internal/exit"
)

// Command is gputrace mcp. version is the version of gputrace.
func Command(version string) *cli.Command {
	return &cli.Command{
		Name:      "mcp",
		Usage:     "answer a coding agent over the Model Context Protocol",
		UsageText: "gputrace mcp [--allow-record] [--all-users] [--folder DIR]",
		Description: "A client starts it and asks over standard input and output. It reads recordings and processes of your own user. To " +
			"record, which attaches probes to a process, it asks you each time through the client. docs/use/mcp.md lists the questions.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "allow-record", Usage: "record without asking each time"},
			&cli.BoolFlag{Name: "all-users", Usage: "also look at and record processes of other users"},
			flags.Text("folder", "", "keep recordings in `DIR` (default: a new folder for temporary files)"),
		},
		Action: func(c *cli.Context) error {
			if c.NArg() > 0 {
				return exit.Usage("unknown argument %q; see gputrace mcp --help", c.Args().First())
			}
			program, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find the program gputrace: %w", err)
			}
			s := New(&Options{
				Program: program, Version: version, Folder: flags.Get[string](c, "folder"),
				AllowRecord: c.Bool("allow-record"), AllUsers: c.Bool("all-users"),
			})
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err = s.Run(ctx, &mcp.StdioTransport{})
			if errors.Is(err, io.EOF) || ctx.Err() != nil { // the client ended
				return nil
			}
			return err
		},
	}
}

// Options configure a server.
type Options struct {
	Program     string // path of gputrace, which answers
	Version     string
	Folder      string // where recordings are kept; empty: a new folder for temporary files
	AllowRecord bool   // record without asking
	AllUsers    bool   // also processes of other users
}

// instructions tell a model how to begin.
const instructions = "gputrace accounts for the GPU memory of PyTorch and CUDA processes on Linux from outside, without changing them. " +
	"For a running job: list_processes, then who_holds (what holds its memory now) or record (how its memory changes: whether it grows). " +
	"For a recording (a folder with a trace.gputrace): verdict first, then drill_down, why_out_of_memory or compare. " +
	"Quote the sentence of an answer as it is. Sizes are bytes; null means not known, never 0."

// New returns a server with all tools.
func New(o *Options) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "gputrace", Title: "gputrace, GPU memory", Version: o.Version}, &mcp.ServerOptions{
		Instructions: instructions, Capabilities: &mcp.ServerCapabilities{},
	})
	t := &tools{program: o, recording: make(chan struct{}, 1)}
	no := false
	reads := &mcp.ToolAnnotations{ReadOnlyHint: true, OpenWorldHint: &no}
	mcp.AddTool(server, &mcp.Tool{
		Name: "list_processes", Title: "Processes that use a GPU", Annotations: reads,
		Description: "List the running processes that use a GPU, with the memory that PyTorch's allocator has on it. Attaches to nothing.",
	}, t.listProcesses)
	mcp.AddTool(server, &mcp.Tool{
		Name: "who_holds", Title: "What holds the memory now", Annotations: reads,
		Description: "Name what holds the GPU memory of a running Python process at this moment: variables, modules, optimizer state, " +
			"autograd graphs. Reads the process's memory from outside, in about a second; sets no probe. Cannot tell whether memory " +
			"grows: record does.",
	}, t.whoHolds)
	mcp.AddTool(server, &mcp.Tool{
		Name: "record", Title: "Record a process", Annotations: &mcp.ToolAnnotations{DestructiveHint: &no, OpenWorldHint: &no},
		Description: "Attach to a running process for some seconds, record each allocation and free of GPU memory with its line, write a " +
			"recording and return its verdict: does memory grow from step to step, by which line, what holds it. The user is asked " +
			"first. Choose seconds for at least 20 steps of the program. The process is not stopped or changed.",
	}, t.record)
	mcp.AddTool(server, &mcp.Tool{
		Name: "verdict", Title: "Verdict of a recording", Annotations: reads,
		Description: "Conclude from a recording: GROWING (a leak, with line, holder, rate and advice), OUT OF MEMORY (with the reason), " +
			"STEADY or UNKNOWN, and the largest holders of memory. Begin with it.",
	}, t.verdict)
	mcp.AddTool(server, &mcp.Tool{
		Name: "drill_down", Title: "What is in use at a moment", Annotations: reads,
		Description: "List what is in use at a moment of a recording, the largest first, by line, function, stack, holder, category " +
			"(parameters, activations, ...), phase, module, operator or device. match keeps the rows that contain a text, such as a " +
			"file name or a variable.",
	}, t.drillDown)
	mcp.AddTool(server, &mcp.Tool{
		Name: "why_out_of_memory", Title: "Why it ran out of memory", Annotations: reads,
		Description: "Explain a request for memory that failed in a recording: the reason in a sentence, what asked, what was in use and by " +
			"what, and which causes would have had to be absent for it to fit.",
	}, t.whyOutOfMemory)
	mcp.AddTool(server, &mcp.Tool{
		Name: "compare", Title: "Compare two recordings", Annotations: reads,
		Description: "Compare what is in use in two recordings, or at two moments of one, by line or another kind of row, the largest change " +
			"first, and what grows in either. For a change of the code: record before and after it.",
	}, t.compare)
	return server
}
