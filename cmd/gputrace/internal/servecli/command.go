// SPDX-License-Identifier: Apache-2.0

// Package servecli serves recordings of folders over HTTP: a list of them, and the page and the profiles of each. It computes nothing: an
// answer is what gputrace report or export prints of a recording.
package servecli

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/html"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/words"
)

// Command is gputrace serve.
func Command(shared *gatecli.Shared) *cli.Command {
	return &cli.Command{
		Name:      "serve",
		Usage:     "serve the recordings of a folder to a browser",
		UsageText: "gputrace serve [FOLDER...] [--listen ADDRESS]",
		Description: "Lists the recordings of a folder and its subfolders, the newest first, each with its verdict, its page and profiles " +
			"for go tool pprof. Runs until Ctrl-C and writes nothing. docs/use/serve.md describes it.",
		Flags: append([]cli.Flag{
			flags.Text("listen", "127.0.0.1:0", "listen on `ADDRESS`; port 0 picks a free one"),
			flags.Text("web-config", "", "read TLS and passwords from `FILE`, in the format of Prometheus's exporter toolkit"),
			&cli.BoolFlag{Name: "allow-insecure", Usage: "allow an address other than loopback without TLS or a password"},
		}, shared.Flags...),
		Action: func(c *cli.Context) error {
			o := &options{
				folders: c.Args().Slice(), listen: flags.Get[string](c, "listen"), webConfig: flags.Get[string](c, "web-config"),
				insecure: c.Bool("allow-insecure"), version: shared.Version, out: os.Stdout, warn: os.Stderr,
			}
			var err error
			if o.open, err = shared.Open(c, &export.OpenOptions{}); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return serve(ctx, o)
		},
	}
}

// options are a command line.
type options struct {
	folders   []string // none: the working directory
	listen    string
	webConfig string // empty: none
	insecure  bool
	version   string
	open      *export.OpenOptions
	out, warn io.Writer
}

// serve serves until ctx is done.
func serve(ctx context.Context, o *options) error {
	if len(o.folders) == 0 {
		o.folders = []string{"."}
	}
	places, err := newPlaces(o.folders)
	if err != nil {
		return err
	}
	name, local, err := o.check()
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.listen)
	if err != nil {
		return addressError(o.listen, err)
	}
	if !local {
		o.open.Alone = true // others could make it read files of this machine by a recording that names them
	}
	s := &server{
		shelf: &shelf{places: places}, what: words.Line(strings.Join(o.folders, ", ")), hosts: hostsOf(name, local),
		reader: newReader(func() *export.OpenOptions { fresh := *o.open; return &fresh }, o.version),
	}
	if !local && o.webConfig == "" {
		fmt.Fprintf(o.warn, "gputrace: warning: everyone who can reach %s can read these recordings: there is no password and no TLS\n", o.listen)
	}
	seen := s.shelf.look()
	fmt.Fprintf(o.out, "Serving %s of %s on %s\n", countText(seen.count), s.what, o.address(l))
	if seen.count == 0 {
		fmt.Fprintf(o.out, "  none yet. %s\n", words.Line(makeOne(places)))
	}
	return s.serve(ctx, l, o.webConfig)
}

// check refuses an address that cannot be used, or that others can reach without TLS or a password. name is its host, local whether only
// this machine can reach it.
func (o *options) check() (name string, local bool, err error) {
	name, _, err = net.SplitHostPort(o.listen)
	if err != nil {
		return "", false, exit.Usage("--listen %s: %w; give an address such as 127.0.0.1:8080", o.listen, err)
	}
	if err := web.Validate(o.webConfig); err != nil {
		return "", false, exit.Usage("--web-config %s: %w", o.webConfig, err)
	}
	ip := net.ParseIP(name)
	local = name == "localhost" || ip != nil && ip.IsLoopback()
	if !local && o.webConfig == "" && !o.insecure {
		return "", false, exit.Usage("--listen %s: others can reach it: give --web-config for TLS or a password, or --allow-insecure", o.listen)
	}
	return name, local, nil
}

// hostsOf returns the names under which a server can be asked that listens on name.
func hostsOf(name string, local bool) hosts {
	out := hosts{addresses: !local}
	own, err := os.Hostname()
	if local || err != nil {
		own = ""
	}
	for _, n := range []string{name, own} {
		if n != "" {
			out.names = append(out.names, strings.ToLower(n))
		}
	}
	return out
}

// address returns what a browser on this machine opens.
func (o *options) address(l net.Listener) string {
	scheme := "http"
	if o.hasTLS() {
		scheme = "https"
	}
	name, port, _ := net.SplitHostPort(o.listen) // checked
	if at, ok := l.Addr().(*net.TCPAddr); ok {
		port = fmt.Sprint(at.Port)
	}
	if ip := net.ParseIP(name); name == "" || ip != nil && ip.IsUnspecified() {
		if own, err := os.Hostname(); err == nil {
			name = own
		}
	}
	return scheme + "://" + net.JoinHostPort(name, port)
}

// hasTLS reports whether the file of --web-config, which was validated, turns on TLS.
func (o *options) hasTLS() bool {
	var config struct {
		TLS map[string]any `yaml:"tls_server_config"`
	}
	text, err := os.ReadFile(o.webConfig)
	return err == nil && yaml.Unmarshal(text, &config) == nil && len(config.TLS) > 0
}

// verdictsOf returns the sentences of a conclusion as a page shows them.
func verdictsOf(c *conclusion) (out []html.JobVerdict) {
	for _, sentence := range c.sentences {
		word, text, _ := strings.Cut(sentence, "  ")
		out = append(out, html.JobVerdict{Kind: export.VerdictKind(word), Word: word, Text: text})
	}
	return out
}

// lengthText returns the length of a recording for people.
func lengthText(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	if d < time.Minute {
		return table.Duration(d)
	}
	return d.Round(time.Second).String()
}
