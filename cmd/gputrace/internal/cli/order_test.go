// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/exit"
)

// testApp has a command with a flag of every kind, and remembers what was asked of it.
func testApp(got *[]string) *cli.App {
	action := func(c *cli.Context) error {
		if c.Command.Name == "gputrace" {
			return CheckWord(c)
		}
		*got = c.Args().Slice()
		return nil
	}
	root := []cli.Flag{
		PIDs("pid,p", ""), Text("output,o", "", ""), Duration("duration,d", "", 0, 0), &cli.BoolFlag{Name: "wait"}, cli.HelpFlag,
		Words("format,f", "", "", nil, func(string) error { return nil }),
	}
	app := &cli.App{
		Name: "gputrace", Version: "1", Flags: root, Action: action, HideHelpCommand: true, Suggest: true, UseShortOptionHandling: true,
		OnUsageError: UsageError,
		Writer:       io.Discard, ErrWriter: io.Discard,
		Commands: []*cli.Command{
			{Name: "record", Flags: root[:4], Action: action}, {Name: "report", Action: action}, {Name: "dump", Flags: root[:1], Action: action},
			{Name: "run", Flags: root[:4], Action: action}, {Name: "help", Action: action},
			{Name: "who", Aliases: []string{"holders"}, Action: action}, {Name: "__start", Action: action, SkipFlagParsing: true},
			{Name: "try", Action: action, Flags: []cli.Flag{
				&cli.BoolFlag{Name: "all", Aliases: []string{"a"}}, &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}},
				Text("format,f", "", ""), Moments("at", ""), Count("top", "", "", 0, "rows"),
			}},
		},
	}
	for _, c := range app.Commands {
		c.OnUsageError, c.HideHelpCommand = UsageError, true
	}
	return app
}

// orderLine orders the words of a command line.
func orderLine(line string) (string, error) {
	out, err := Order(testApp(&[]string{}), append([]string{"gputrace"}, strings.Fields(line)...))
	return strings.TrimPrefix(strings.Join(out, " "), "gputrace "), err
}

// runLine runs it too.
func runLine(line string) error {
	app := testApp(&[]string{})
	args, err := Order(app, append([]string{"gputrace"}, strings.Fields(line)...))
	if err == nil {
		err = app.Run(args)
	}
	return err
}

func TestOrder(t *testing.T) {
	for line, want := range map[string]string{
		"report x":                    "report -- x",
		"try x --all":                 "try --all -- x",
		"try x -f json y -a z":        "try -f=json -a -- x y z",
		"try -f json x":               "try -f=json -- x",
		"try -f=json x":               "try -f=json -- x",
		"try --format=a=b x":          "try --format=a=b -- x",
		"try -format json x":          "try --format=json -- x",
		"try x -f=":                   "try -f= -- x",
		"try x -- --all y":            "try -- x --all y",
		"try -- -x":                   "try -- -x",
		"try -- --":                   "try -- --",
		"try x --":                    "try -- x",
		"try - -a":                    "try -a -- -",
		"try x -f -":                  "try -f=- -- x",
		"try -f -1s":                  "try -f=-1s",
		"try x -aq":                   "try -aq -- x",
		"try x -aqf json":             "try -aq -f=json -- x",
		"try x -aqfjson":              "try -aq -f=json -- x",
		"try x -qf=json":              "try -q -f=json -- x",
		"try -a=false x":              "try -a=false -- x",
		"try --at 10s --at peak x":    "try --at=10s --at=peak -- x",
		"-a try x":                    "try -a -- x",
		"-f json try x":               "try -f=json -- x",
		"-p 42 record":                "record --pid=42",
		"-p42":                        "--pid=42",
		"42":                          "-- 42",
		"42 -d 5s -o out":             "-d=5s -o=out -- 42",
		"42 --wait":                   "--wait -- 42",
		"-p 42 43":                    "--pid=42 -- 43",
		"record 42 --wait":            "record --wait -- 42",
		"--help":                      "--help",
		"-h report":                   "report -h",
		"report x -h":                 "report -h -- x",
		"-v":                          "-v",
		"-p report":                   "--pid=report", // a value, not a command
		"-o report record -p 1":       "record -o=report --pid=1",
		"help report":                 "help -- report",
		"__start record -p --wait x":  "__start record -p --wait x",
		"run -o out python -c 1 -d 2": "run -o=out -- python -c 1 -d 2", // the program's own
		"run python -d 2 -- x":        "run -d=2 -- python x",
	} {
		got, err := orderLine(line)
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
}

func TestOrderNothing(t *testing.T) {
	out, err := Order(testApp(&[]string{}), []string{"gputrace"})
	require.NoError(t, err)
	require.Equal(t, []string{"gputrace"}, out)
}

func TestRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"reprot":           `unknown command "reprot": did you mean "report"? See gputrace --help`,
		"reprot x":         `"report"?`,
		"Report":           `"report"?`,
		"dmup -p 4":        `"dump"?`,
		"frobnicate":       `unknown command "frobnicate"; see`,
		"try --al":         `unknown flag --al; see gputrace try --help`,
		"try --fromat x":   `did you mean "--format"?`,
		"try x --formatt":  `did you mean "--format"?`,
		"try -x":           `unknown flag -x; see gputrace try --help`,
		"try -ax":          "unknown flag --ax",
		"--ouput x":        `did you mean "--output"? See gputrace --help`,
		"try -f":           "-f needs a value",
		"try -af":          "-f needs a value",
		"try -f --all x":   "-f needs a value",
		"try -f -- x":      "-f needs a value",
		"try -f a -f b":    "-f is given twice",
		"try -f a --all":   "",
		"try -f a --force": "unknown flag --force",
		"-p 4 --pid 5":     "",
		"-p 42 report x":   "unknown flag -p",
		"-- python x.py":   "gputrace run -- python",
		"-p 4 -- sleep":    "gputrace run -- sleep",
	} {
		err := runLine(line)
		if want == "" {
			require.NoError(t, err, line)
			continue
		}
		require.ErrorContains(t, err, want, line)
		require.Equal(t, exit.Misuse, exit.Code(err), line)
	}
}

// FuzzOrder: no command line crashes it, and one that is in order stays as it is.
func FuzzOrder(f *testing.F) {
	for _, line := range []string{"report x --force", "-p 42 -d 5s", "who -p1 --by=module", "a -- b", "-", "--", "-=", "--=x", "-\xff",
		"dump -fo-"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := append([]string{"gputrace"}, strings.Fields(line)...)
		out, err := Order(testApp(&[]string{}), args)
		if err != nil {
			require.Equal(t, exit.Misuse, exit.Code(err))
			return
		}
		again, err := Order(testApp(&[]string{}), out)
		if err == nil { // "--" in front of a word that is no command is refused only where the user wrote it
			require.Equal(t, out, again, "from %q", args)
		}
	})
}

// TestOrderBareValue: a duration with an initial value may be given without one.
func TestOrderBareValue(t *testing.T) {
	app := testApp(new([]string))
	app.Commands = append(app.Commands, &cli.Command{Name: "stop", Flags: []cli.Flag{
		&cli.DurationFlag{Name: "freeze", Value: 250 * time.Millisecond}, &cli.DurationFlag{Name: "after"}, &cli.BoolFlag{Name: "json"},
	}})
	for line, want := range map[string]string{
		"stop --freeze":             "stop --freeze=250ms",
		"stop --freeze --json":      "stop --freeze=250ms --json",
		"stop --freeze 42":          "stop --freeze=250ms -- 42",
		"stop --freeze 1s 42":       "stop --freeze=1s -- 42",
		"stop --freeze=1s 42":       "stop --freeze=1s -- 42",
		"stop 42 --freeze -- --all": "stop --freeze=250ms -- 42 --all",
		"stop --after 1s":           "stop --after=1s",
	} {
		got, err := Order(app, append([]string{"gputrace"}, strings.Fields(line)...))
		require.NoError(t, err, line)
		require.Equal(t, "gputrace "+want, strings.Join(got, " "), line)
	}
	_, err := Order(app, []string{"gputrace", "stop", "--after"})
	require.ErrorContains(t, err, "needs a value")
}
