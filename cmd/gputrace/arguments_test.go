package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"
)

// arrangeLine arranges the words of a command line, with the app of a test that has a flag of every kind.
func arrangeLine(line string) (string, error) {
	app := newApp()
	app.Commands = append(app.Commands, &cli.Command{Name: "try", Flags: []cli.Flag{
		&cli.BoolFlag{Name: "all", Aliases: []string{"a"}}, &cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}},
		&cli.StringFlag{Name: "format", Aliases: []string{"f"}}, &cli.StringSliceFlag{Name: "at"},
	}})
	out, err := arrange(app, append([]string{"gputrace"}, strings.Fields(line)...))
	return strings.TrimPrefix(strings.Join(out, " "), "gputrace "), err
}

func TestArrange(t *testing.T) {
	for line, want := range map[string]string{
		"report x":                      "report -- x",
		"try x --all":                   "try --all -- x",
		"try x -f json y -a z":          "try -f=json -a -- x y z",
		"try -f json x":                 "try -f=json -- x",
		"try -f=json x":                 "try -f=json -- x",
		"try --format=a=b x":            "try --format=a=b -- x",
		"try -format json x":            "try --format=json -- x",
		"try x -f=":                     "try -f= -- x",
		"try x -- --all y":              "try -- x --all y",
		"try -- -x":                     "try -- -x",
		"try -- --":                     "try -- --",
		"try x --":                      "try -- x",
		"try - -a":                      "try -a -- -",
		"try x -f -":                    "try -f=- -- x",
		"try -f -1s":                    "try -f=-1s",
		"try x -aq":                     "try -a -q -- x",
		"try x -aqf json":               "try -a -q -f=json -- x",
		"try x -aqfjson":                "try -a -q -f=json -- x",
		"try x -qf=json":                "try -q -f=json -- x",
		"try -a=false x":                "try -a=false -- x",
		"try --at 10s --at peak x":      "try --at=10s --at=peak -- x",
		"-a try x":                      "try -a -- x",
		"-f json try x":                 "try -f=json -- x",
		"-p 42 record":                  "record -p=42",
		"-p42":                          "-p=42",
		"42":                            "-- 42",
		"42 -d 5s -o out":               "-d=5s -o=out -- 42",
		"42 --wait":                     "--wait -- 42",
		"-p 42 43":                      "-p=42 -- 43",
		"record 42 --wait":              "record --wait -- 42",
		"--help":                        "--help",
		"-h report":                     "report -h",
		"report x -h":                   "report -h -- x",
		"-v":                            "-v",
		"-p report":                     "-p=report", // a value, not a command
		"-o report record -p 1":         "record -o=report -p=1",
		"help report":                   "help -- report",
		"__complete record -p --wait x": "__complete record -p --wait x",
	} {
		got, err := arrangeLine(line)
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
}

func TestArrangeNothing(t *testing.T) {
	out, err := arrange(newApp(), []string{"gputrace"})
	require.NoError(t, err)
	require.Equal(t, []string{"gputrace"}, out)
}

func TestArrangeRefuses(t *testing.T) {
	for line, want := range map[string]string{
		"reprot":           `unknown command "reprot": did you mean "report"?; see gputrace --help`,
		"reprot x":         `"report"?`,
		"Report":           `"report"?`,
		"dmup -p 4":        `"dump"?`,
		"frobnicate":       `unknown command "frobnicate"; see`,
		"try --al":         `unknown flag --al; see gputrace try --help`,
		"try --fromat x":   `did you mean "--format"?`,
		"try x --formatt":  `did you mean "--format"?`,
		"try -x":           `unknown flag -x; see gputrace try --help`,
		"try -ax":          "unknown flag -ax",
		"--ouput x":        `did you mean "--output"?; see gputrace --help`,
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
		_, err := arrangeLine(line)
		if want == "" {
			require.NoError(t, err, line)
			continue
		}
		requireUsage(t, err, want)
	}
}

// TestArrangeExamples: what the help shows can be typed.
func TestArrangeExamples(t *testing.T) {
	for command, list := range examples {
		require.NotEmpty(t, list, command)
		for _, e := range list {
			line, _, _ := strings.Cut(e.line, " | ")
			line, _, _ = strings.Cut(line, " > ")
			line = strings.TrimSuffix(strings.TrimPrefix(strings.TrimPrefix(line, "source <("), "sudo "), ")")
			words := strings.Fields(line)
			require.Equal(t, "gputrace", words[0], e.line)
			out, err := arrange(newApp(), words)
			require.NoError(t, err, e.line)
			if command != "" && !isNumber(words[1]) {
				require.Equal(t, command, out[1], e.line)
			}
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		x, y string
		want int
	}{
		{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"reprot", "report", 1}, {"kitten", "sitting", 3},
		{"flaw", "lawn", 2}, {"ab", "ba", 1}, {"größe", "grösse", 2}, {"ca", "abc", 3},
	} {
		require.Equal(t, c.want, distance(c.x, c.y), "%s %s", c.x, c.y)
		require.Equal(t, c.want, distance(c.y, c.x), "%s %s", c.y, c.x)
	}
}

// FuzzArrange: no command line crashes it, and one that is in order stays as it is.
func FuzzArrange(f *testing.F) {
	for _, line := range []string{"report x --force", "-p 42 -d 5s", "who -p1 --by=module", "a -- b", "-", "--", "-=", "--=x", "-\xff", "dump -fo-"} {
		f.Add(line)
	}
	f.Fuzz(func(t *testing.T, line string) {
		args := append([]string{"gputrace"}, strings.Fields(line)...)
		out, err := arrange(newApp(), args)
		if err != nil {
			var c *codedError
			require.ErrorAs(t, err, &c)
			require.Equal(t, exitUsage, c.code)
			return
		}
		again, err := arrange(newApp(), out)
		require.NoError(t, err, "%q became %q", args, out)
		require.Equal(t, out, again, "from %q", args)
	})
}
